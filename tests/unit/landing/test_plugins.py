"""The pytest plugins that the suites share, tested in separate runs of pytest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parents[2]
pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.Pytester]:
    """Yield a test folder with our plugins that ignores the settings of this run."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_OUTCOMES", str(pytester.path / "outcomes"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins take seconds to import
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    monkeypatch.setenv("TEST_TIER", "landing")
    pytester.makeconftest((TESTS / "conftest.py").read_text())
    profile = hypothesis.settings.default
    yield pytester
    hypothesis.settings.register_profile("tier", profile)
    hypothesis.settings.load_profile("tier")


SKIPS = {
    "test": "import pytest\n@pytest.mark.skip\ndef test_it(): pass",
    "module": "import pytest\npytest.skip('no engine', allow_module_level=True)",
    "import": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass",
}


@pytest.mark.parametrize("level", SKIPS)
def test_fail_on_skip_sees_skips_at_each_level(suite: pytest.Pytester, level: str) -> None:
    suite.makepyfile(test_skips=SKIPS[level], test_passes="def test_it(): pass")
    assert suite.runpytest_inprocess().ret == pytest.ExitCode.OK
    result = suite.runpytest_inprocess("--fail-on-skip")
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    result.stdout.fnmatch_lines("*skipped, which --fail-on-skip forbids*")


def test_fail_on_skip_sees_skips_in_workers(suite: pytest.Pytester) -> None:
    suite.makepyfile(**{f"test_{level}": code for level, code in SKIPS.items()})
    result = suite.runpytest_subprocess("-n1", "--fail-on-skip", "--continue-on-collection-errors")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines_random([f"*test_{level}.py*" for level in SKIPS])
    assert "skipped" not in result.parseoutcomes()


def test_outcomes_name_failed_tests_without_their_group(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_some="""
        import pytest
        pytestmark = pytest.mark.xdist_group("ray")
        @pytest.mark.parametrize("x", ["a@b"])
        def test_fails(x): assert False
        def test_passes(): pass
        """
    )
    suite.runpytest_subprocess("-n1", "--dist=loadgroup")
    (file,) = (suite.path / "outcomes").iterdir()
    expected = {"passed": 1, "failed": ["test_some.py::test_fails[a@b]"], "complete": True}
    assert json.loads(file.read_text()) == expected


def test_outcomes_of_an_aborted_run_are_incomplete(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_it(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        suite.runpytest_inprocess()
    (file,) = (suite.path / "outcomes").iterdir()
    assert not json.loads(file.read_text())["complete"]


CRASHES = """
import os, pytest
pytestmark = pytest.mark.xdist_group("ray")
def test_passes(): pass
def test_crashes(): os._exit(1)
def test_fails(): assert False
"""


@pytest.mark.parametrize(
    ("options", "reported"), [(("-n1", "--dist=loadgroup"), False), (("-n2", "--dist=load"), True)]
)
def test_outcomes_are_incomplete_if_a_worker_crashed(
    suite: pytest.Pytester, options: tuple[str, ...], reported: bool
) -> None:
    """Even if other workers have reported all other tests."""
    suite.makepyfile(CRASHES)
    suite.runpytest_subprocess(*options)
    (file,) = (suite.path / "outcomes").iterdir()
    document = json.loads(file.read_text())
    assert ("test_fails" in str(document["failed"])) == reported
    assert not document["complete"]


TIERS = """
import pytest
from hypothesis import given, settings, strategies
from support.tiers import examples
COUNT = examples(400)
@pytest.mark.long("crash-points")
def test_long(): pass
@pytest.mark.long("clouds")
def test_of_another_group(): pass
@pytest.mark.scaled("crash-points")
def test_scaled(): print("EXAMPLES", COUNT, settings().max_examples)
@given(strategies.integers())
def test_property(number): pass
def test_plain(): pass
"""


@pytest.mark.parametrize(
    ("group", "selected", "examples"),
    [
        ([], ["scaled", "property", "plain"], "100 25"),
        (["--long", "crash-points"], ["long", "scaled"], "400 100"),
        (["--long", "properties"], ["property"], ""),
    ],
)
def test_tier_selects_tests_and_their_number_of_examples(
    suite: pytest.Pytester, group: list[str], selected: list[str], examples: str
) -> None:
    file = suite.makepyfile(test_tiers=TIERS)
    result = suite.runpytest_inprocess("-v", "-s", *group)
    result.assert_outcomes(passed=len(selected), deselected=5 - len(selected))
    result.stdout.fnmatch_lines([f"{file.name}::test_{name} *" for name in selected])
    if examples:
        result.stdout.fnmatch_lines(f"*EXAMPLES {examples}*")
    assert os.environ["TEST_TIER"] == ("long" if group else "landing")
