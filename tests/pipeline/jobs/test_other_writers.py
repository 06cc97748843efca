"""Other programs create a table, or add rows to it, right before the commit of a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.jobs.delayed_drivers import Check, delay_driver
from support.jobs.text_table import TextTable
from support.outputs.other_writers import append, create_empty

FORMATS = ["delta", "iceberg", "lance", "sql"]
formats = pytest.mark.parametrize("table", FORMATS, indirect=True)
new_or_empty = pytest.mark.parametrize("exists", [False, True], ids=["a new table", "an empty one"])


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TextTable:
    return TextTable(request.param, tmp_path)


def before_commit(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Call `meanwhile` right after the last check of the next driver."""

    def after_check(check: Check) -> None:
        check()
        meanwhile()

    delay_driver(monkeypatch, after_check)


def add_others(table: TextTable) -> None:
    """Add two rows, and create the table if it does not exist."""
    create_empty(table.format, table.folder)
    append(table.format, table.folder, "x1")
    append(table.format, table.folder, "x2")


@formats
@new_or_empty
def test_mode_error_keeps_the_rows_of_others(
    table: TextTable, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        create_empty(table.format, table.folder)
    before_commit(monkeypatch, lambda: add_others(table))
    for _ in range(2):
        refused = table.run("error")
        assert (refused.state, refused.reason) == (JobState.FAILED, "BadOutput")
        assert "has rows already" in (refused.message or "")
        assert table.texts() == ["x1", "x2"]
    assert table.run("append").state == JobState.SUCCEEDED
    assert (table.texts(), table.proven()) == (["a1", "a3", "x1", "x2"], True)


@formats
@pytest.mark.parametrize("mode", ["error", "append"])
def test_table_that_others_create_without_rows_is_filled(
    table: TextTable, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_commit(monkeypatch, lambda: create_empty(table.format, table.folder))
    report = table.run(mode)
    assert report.state == JobState.SUCCEEDED, report.message
    assert (table.texts(), table.proven()) == (["a1", "a3"], True)
    assert table.run(mode).state == JobState.SUCCEEDED
    assert table.texts() == ["a1", "a3"]


@formats
def test_rows_are_appended_to_a_table_that_others_create(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_commit(monkeypatch, lambda: add_others(table))
    report = table.run("append")
    assert report.state == JobState.SUCCEEDED, report.message
    assert (table.texts(), table.proven()) == (["a1", "a3", "x1", "x2"], True)


@formats
@pytest.mark.parametrize("exists", [False, True], ids=["a new table", "an existing one"])
def test_overwrite_replaces_all_rows_that_the_table_has_at_the_commit(
    table: TextTable, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        add_others(table)
    before_commit(monkeypatch, lambda: add_others(table))
    report = table.run("overwrite")
    assert report.state == JobState.SUCCEEDED, report.message
    assert (table.texts(), table.proven()) == (["a1", "a3"], True)
