"""Groups of the long tier run when a guarded path has changed, and otherwise by age."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from landing.long_tier import (
    MAX_AGE,
    Due,
    Group,
    Pass,
    choose,
    due_groups,
    guarded_hash,
    has_uncommitted_changes,
    read_groups,
    read_passes,
    recorded_landings,
    write_pass,
)
from landing.plan import LONG_MINUTES
from landing.steps import Result
from landing.suite import SuiteResult
from landing.verdict import failures

ROOT = Path(__file__).parents[3]
MOST_MINUTES = 22
"""A landing has 45 minutes and takes 22 without the long tier."""
DAYS = [f"2026-03-{day:02}" for day in range(1, 13)]


def group(name: str, minutes: float = 2) -> Group:
    return Group(name, ("make", name), minutes, (name,), added="2026-02-28")


def due(name: str, age: int, changed: bool = False, minutes: float = 2) -> Due:
    return Due(group(name, minutes), age, changed)


@pytest.mark.parametrize(
    ("dues", "minutes", "chosen"),
    [
        ([due("a", 1), due("b", 3), due("c", 2, changed=True), due("d", 4)], 10, ["c", "d"]),
        (
            [due("a", 4, True, 3), due("b", 3, True, 3), due("c", 2, True, 1), due("d", 1)],
            4,
            ["a", "c"],
        ),
        ([due("a", 1, minutes=30)], 4, ["a"]),
        ([due("a", 3, minutes=4), due("b", 3, minutes=2)], 4, ["b"]),
    ],
)
def test_changed_groups_and_the_one_that_waited_longest_run_if_there_is_time(
    dues: list[Due], minutes: float, chosen: list[str]
) -> None:
    """The first one always runs, and the quicker one of the same age."""
    assert [each.group.name for each in choose(dues, minutes)] == chosen


@pytest.mark.parametrize("days", [[], DAYS])
@pytest.mark.parametrize("changed", [[], ["crash-points", "clouds"], ["worker-node", "head-node"]])
def test_no_group_of_the_repository_becomes_overdue(changed: list[str], days: list[str]) -> None:
    """Even if the paths of some groups change before each landing."""
    groups = read_groups(ROOT / "tests" / "long.toml")
    passes = {each.name: Pass("2026-02-28", 1, "") for each in groups}
    hashes = {each.name: "changed" if each.name in changed else "" for each in groups}
    for landing in range(2, 10 * MAX_AGE):
        seen = days[: landing - 1]
        dues = due_groups(groups, passes, seen, hashes)
        chosen = choose(dues, LONG_MINUTES)
        assert max(each.age for each in dues if each not in chosen) <= MAX_AGE
        assert sum(each.group.minutes for each in chosen) <= MOST_MINUTES
        today = (seen or ["2026-02-28"])[-1]
        passes |= {each.group.name: Pass(today, landing, "") for each in chosen}


def test_age_is_the_number_of_recorded_landings_or_of_days_since_the_pass() -> None:
    passes = {
        "a": Pass("2026-03-10", 9, "same"),
        "b": Pass("2026-03-12", 10, "other"),
        "c": Pass("2026-03-12", 3, "same"),
    }
    groups = [group(name) for name in "abcd"]
    result = due_groups(groups, passes, [*DAYS, DAYS[-1]], dict.fromkeys("abcd", "same"))
    ages = [(each.age, each.changed) for each in result]
    assert ages == [(2, False), (0, True), (7, False), (12, True)]


def test_overdue_group_fails_the_landing_unless_it_ran() -> None:
    (reason,) = failures([], [due("crash-points", 11), due("fresh", 10)], seconds=1, limit=2)
    assert "long:crash-points: has not passed for 11 landings (at most 10)" in reason
    assert "make long GROUP=crash-points" in reason
    ran = [SuiteResult(Result("long:crash-points", "passed"))]
    assert failures(ran, [due("crash-points", 11)], seconds=1, limit=2) == []


def test_pass_is_recorded_next_to_passes_of_other_groups(tmp_path: Path) -> None:
    file = tmp_path / "passed.json"
    assert recorded_landings(read_passes(file)) == 0
    write_pass(file, "a", Pass("2026-03-01", 1, "x"))
    write_pass(file, "b", Pass("2026-03-02", 3, "y"))
    write_pass(file, "a", Pass("2026-03-03", 2, "z"))
    assert read_passes(file) == {"a": Pass("2026-03-03", 2, "z"), "b": Pass("2026-03-02", 3, "y")}
    assert recorded_landings(read_passes(file)) == 3


def test_hash_changes_with_the_guarded_paths_and_the_tests_of_the_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "tests/test_a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    (tmp_path / "tests/test_b.py").write_text('@pytest.mark.long("b")')
    subprocess.run(["git", "init", "--quiet"], check=True)

    def hashes() -> list[str]:
        subprocess.run(["git", "add", "."], check=True)
        return [guarded_hash(group("a")), guarded_hash(group("b"))]

    before = hashes()
    (tmp_path / "a").write_text("two")
    assert [has_uncommitted_changes(group(name)) for name in "ab"] == [True, False]
    after = hashes()
    assert not has_uncommitted_changes(group("a"))
    assert after[0] != before[0]
    assert after[1] == before[1]
    (tmp_path / "tests/test_b.py").write_text('@pytest.mark.scaled("b")')
    assert [one == other for one, other in zip(hashes(), after, strict=True)] == [True, False]


def test_groups_of_the_repository_guard_paths_that_exist() -> None:
    for each in read_groups(ROOT / "tests" / "long.toml"):
        for path in each.paths:
            assert list(ROOT.glob(path.rstrip("/"))), f"{each.name}: {path} matches nothing"


COLLECTED = {
    "long-e2e": {"e2e"},
    "long-monitoring": {"apiserver", "chart"},
    "long-vllm-engine": {"pipeline"},
    "long-tests": {"apiserver", "chart", "docs", "pipeline", "unit"},
}
"""The suites that each command of `tests/long.toml` collects."""


def test_every_long_test_is_collected_by_the_command_of_its_group() -> None:
    groups = {each.name: each for each in read_groups(ROOT / "tests" / "long.toml")}
    marks = re.compile(r'mark\.(?:long|scaled)\("([\w-]+)"\)')
    tests = ROOT / "tests"
    files = [file for file in tests.rglob("*.py") if file.parent != Path(__file__).parent]
    named = [(file, name) for file in files for name in set(marks.findall(file.read_text()))]
    assert {name for _, name in named} > groups.keys() - {"properties"}
    for file, name in named:
        if name == "upgrade":  # run by `make upgrade`: a shallow checkout lacks the older release
            continue
        suite, command = file.relative_to(tests).parts[0], groups[name].command[1]
        assert suite in COLLECTED[command] | {"support"}, file
