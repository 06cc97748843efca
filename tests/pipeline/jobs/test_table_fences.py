"""Drivers that die right after the commit of a table, or are delayed right before it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchinference.spec.progress import Counts
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.jobs.delayed_drivers import Check, delay_driver, kill_after_commit
from support.jobs.on_ray import write_lines
from support.jobs.text_table import COMPUTED, TextTable
from support.jobs.without_ray import run_without_ray
from support.outputs.other_writers import append

MERGES = ["delta merge", "iceberg merge", "sql merge"]
FORMATS = ["delta", "iceberg", "sql", *MERGES, "lance"]


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TextTable:
    return TextTable(request.param, tmp_path)


def delay_driver_until_another_is_killed(monkeypatch: pytest.MonkeyPatch, table: TextTable) -> None:
    """Delay the next driver until another one has begun, and was killed before its commit."""

    def other(check: Check) -> None:
        raise OSError("killed before its commit")

    def meanwhile(check: Check) -> None:
        check()
        delay_driver(monkeypatch, other)
        assert table.run().state == JobState.FAILED

    delay_driver(monkeypatch, meanwhile)


@pytest.mark.parametrize("table", FORMATS, indirect=True)
@pytest.mark.parametrize("mode", ["error", ""])
def test_driver_killed_after_its_commit_leaves_proof(
    table: TextTable, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after_commit(monkeypatch)
    assert table.run(mode).state == JobState.FAILED
    report = table.run(mode)
    assert (report.state, table.texts()) == (JobState.SUCCEEDED, ["a1", "a3"])
    assert report.counts == Counts(read=3, written=2, failed=1)
    assert table.proven()
    assert not (table.output / "_batchinference" / "staged").exists()
    assert table.run(mode).state == JobState.SUCCEEDED
    assert (table.texts(), table.proven()) == (["a1", "a3"], True)


@pytest.mark.parametrize("table", ["delta", "iceberg", "sql", "lance"], indirect=True)
def test_overwrite_killed_after_its_commit_is_not_repeated(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after_commit(monkeypatch)
    assert table.run("overwrite").state == JobState.FAILED
    append(table.format, table.folder, "later")
    COMPUTED.clear()
    report = table.run("overwrite")
    assert (report.state, report.counts.written) == (JobState.SUCCEEDED, 2)
    assert (table.texts(), COMPUTED) == (["a1", "a3", "later"], [])
    assert table.run("overwrite").state == JobState.SUCCEEDED
    assert table.texts() == ["a1", "a3"]


@pytest.mark.parametrize("filled", [False, True], ids=["a new table", "one with rows"])
class TestDelayedDriver:
    def begin(self, table: TextTable, filled: bool) -> list[str]:
        """Fill the table and add input if `filled`. Return the rows of the table in the end."""
        if not filled:
            return ["a1", "a3"]
        assert table.run().state == JobState.SUCCEEDED
        table.lines("b", ["b1", "x b2"])
        return ["a1", "a3", "b1"]

    @pytest.mark.parametrize("table", FORMATS, indirect=True)
    @pytest.mark.parametrize("checked", [False, True], ids=["before its check", "after it"])
    def test_delayed_driver_fails_if_another_run_finishes_first(
        self, table: TextTable, checked: bool, filled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its last check finds the other run. After the check, only the table can refuse it."""
        rows = self.begin(table, filled)

        def meanwhile(check: Check) -> None:
            if checked:
                check()
            assert table.run().state == JobState.SUCCEEDED
            if not checked:
                check()

        delay_driver(monkeypatch, meanwhile)
        late = table.run()
        assert (late.state, late.reason) == (JobState.FAILED, "BadOutput")
        assert checked or "another run has taken over" in (late.message or "")
        assert (table.texts(), table.proven()) == (rows, True)
        assert table.run().state == JobState.SUCCEEDED
        assert table.texts() == rows

    @pytest.mark.parametrize("table", ["delta", "iceberg", "lance"], indirect=True)
    def test_delayed_driver_commits_before_a_run_that_has_begun(
        self, table: TextTable, filled: bool, monkeypatch: pytest.MonkeyPatch, messages: Messages
    ) -> None:
        rows = self.begin(table, filled)
        delay_driver_until_another_is_killed(monkeypatch, table)
        assert table.run().state == JobState.FAILED, "it cannot say any more what it has done"
        assert table.texts() == rows
        for _ in range(2):
            refused = table.run()
            assert refused.reason == "BadOutput"
            messages.check(re.sub(r"append-[\w-]+", "append-KEY", refused.message or ""))
            assert table.texts() == rows
        assert table.run("overwrite").state == JobState.SUCCEEDED
        assert (table.texts(), table.proven()) == (rows, True)


@pytest.mark.parametrize("table", ["delta merge", "iceberg merge"], indirect=True)
def test_rows_of_a_delayed_merge_are_merged_again(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_driver_until_another_is_killed(monkeypatch, table)
    assert table.run().state == JobState.FAILED
    assert table.texts() == ["a1", "a3"]
    assert table.run().state == JobState.SUCCEEDED
    assert (table.texts(), table.proven()) == (["a1", "a3"], True)


@pytest.mark.parametrize("table", FORMATS, indirect=True)
def test_only_one_of_two_overwrites_succeeds(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.run().state == JobState.SUCCEEDED
    table.lines("a", ["b1", "b2"])

    def meanwhile(check: Check) -> None:
        check()
        table.lines("a", ["c1", "c2"])
        assert table.run("overwrite", resume=False).state == JobState.SUCCEEDED

    delay_driver(monkeypatch, meanwhile)
    assert table.run("overwrite").state == JobState.FAILED
    assert (table.texts(), table.proven()) == (["c1", "c2"], True)
    table.lines("a", ["d1"])
    assert table.run("overwrite").state == JobState.SUCCEEDED
    assert (table.texts(), table.proven()) == (["d1"], True)


@pytest.mark.parametrize("table", FORMATS, indirect=True)
def test_concurrent_appends_of_others_are_allowed(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.run().state == JobState.SUCCEEDED
    table.lines("b", ["b1"])

    def meanwhile(check: Check) -> None:
        check()
        other = table.job()
        other["spec"]["read"]["paths"] = [
            str(write_lines(table.folder / "more", {"c.txt": ["c1"]}))
        ]
        report = run_without_ray(other)
        assert report.state == JobState.SUCCEEDED, report.message

    delay_driver(monkeypatch, meanwhile)
    report = table.run()
    assert report.state == JobState.SUCCEEDED, report.message
    assert (table.texts(), table.proven()) == (["a1", "a3", "b1", "c1"], True)
