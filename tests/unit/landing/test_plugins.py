"""The pytest plugins that the suites share, tested in separate runs of pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a test folder with our plugins that ignores the settings of this run."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_OUTCOMES", str(pytester.path / "outcomes"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins take seconds to import
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    monkeypatch.delenv("TEST_TIER", raising=False)
    pytester.makeconftest((TESTS / "conftest.py").read_text())
    return pytester


SKIPS = {
    "test": "import pytest\n@pytest.mark.skip\ndef test_it(): pass",
    "module": "import pytest\npytest.skip('no engine', allow_module_level=True)",
    "import": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass",
}


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_fail_on_skip_sees_skips_at_each_level(suite: pytest.Pytester, workers: str) -> None:
    suite.makepyfile(**{f"test_{level}": code for level, code in SKIPS.items()})
    result = suite.runpytest_subprocess(workers, "--fail-on-skip")
    assert result.ret != pytest.ExitCode.OK
    assert result.stdout.str().count("skipped, which --fail-on-skip forbids") >= len(SKIPS)


def test_module_that_is_skipped_fails_the_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_skips=SKIPS["module"], test_passes="def test_it(): pass")
    assert suite.runpytest_subprocess().ret == pytest.ExitCode.OK
    assert suite.runpytest_subprocess("--fail-on-skip").ret != pytest.ExitCode.OK


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
    suite.runpytest_subprocess("-n1", "--dist=loadgroup", "--timing")
    (file,) = (suite.path / "outcomes").iterdir()
    expected = {"passed": 1, "failed": ["test_some.py::test_fails[a@b]"], "complete": True}
    assert json.loads(file.read_text()) == expected


def test_outcomes_of_a_run_that_broke_off_are_incomplete(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_it(): raise KeyboardInterrupt")
    suite.runpytest_subprocess()
    (file,) = (suite.path / "outcomes").iterdir()
    assert not json.loads(file.read_text())["complete"]


def test_timing_lists_folders_and_the_slowest_tests(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_some="def test_it(): pass")
    result = suite.runpytest_subprocess("--timing")
    result.stdout.fnmatch_lines(["*seconds by folder*", "* s  .", "* s  test_some.py::test_it"])


TIERS = """
import pytest
from support.tiers import examples
COUNT = examples(400)
@pytest.mark.long("crash-points")
def test_long(): pass
@pytest.mark.long("clouds")
def test_of_another_group(): pass
@pytest.mark.scaled("crash-points")
def test_scaled(): print("EXAMPLES", COUNT)
def test_plain(): pass
"""


def test_long_tests_run_in_their_group_only(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_tiers=TIERS)
    landing = suite.runpytest_subprocess("-v", "-s")
    landing.assert_outcomes(passed=2, deselected=2)
    landing.stdout.fnmatch_lines("*EXAMPLES 100*")
    group = suite.runpytest_subprocess("-v", "-s", "--long", "crash-points")
    group.assert_outcomes(passed=2, deselected=2)
    group.stdout.fnmatch_lines("*EXAMPLES 400*")


def test_properties_use_all_examples_in_the_long_tier(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        from hypothesis import given, strategies
        @given(strategies.integers())
        def test_property(number): pass
        def test_plain(): pass
        """
    )
    suite.runpytest_subprocess("--long", "properties").assert_outcomes(passed=1, deselected=1)
