"""Jobs that write a table: staged files, merges of rows, other writers, and `verify`."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa

from batchinference.pipeline.commit import job_pass
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.table_commit import Fence
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.jobs.table_writes import run_job
from support.jobs.text_table import COMPUTED, TextTable
from support.jobs.without_ray import InProcessExecution
from support.outputs.other_writers import append, other_writers, rows_of_writers
from support.outputs.tables import catalog_of, write_fields
from support.outputs.verify_command import verified

MERGES = ["delta merge", "iceberg merge", "sql merge"]


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TextTable:
    COMPUTED.clear()
    return TextTable(request.param, tmp_path)


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_staged_files_that_cannot_be_deleted_are_deleted_by_the_next_run(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = table.output / "_batchinference" / "staged"
    real = Location.delete_directory

    def refuse(location: Location) -> None:
        if Path(location.path) == staged and (table.output / "_SUCCESS").exists():
            raise PermissionError("access denied")
        real(location)

    with monkeypatch.context() as refusing:
        refusing.setattr(Location, "delete_directory", refuse)
        assert table.run("error").state == JobState.SUCCEEDED
    assert staged.exists()
    assert table.run("error").state == JobState.SUCCEEDED
    assert (staged.exists(), table.texts(), table.proven()) == (False, ["a1", "a3"], True)


@pytest.mark.parametrize("table", ["delta", "sql"], indirect=True)
def test_second_pass_computes_rows_that_the_first_lost(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.lines("b", ["b1"])
    real, passes = InProcessExecution.run, count(1)

    def run(self: InProcessExecution) -> None:
        self._only = 0 if next(passes) == 1 else None
        real(self)

    monkeypatch.setattr(InProcessExecution, "run", run)
    report = table.run()
    assert (report.state, report.pass_number) == (JobState.SUCCEEDED, 2)
    assert sorted(COMPUTED) == ["a1", "a3", "b1", "x a2"]
    assert (table.texts(), table.proven()) == (["a1", "a3", "b1"], True)


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_small_files_are_merged_before_they_are_registered(table: TextTable) -> None:
    table.lines("b", ["b1"])
    assert table.run().state == JobState.SUCCEEDED
    assert len(deltalake.DeltaTable(str(table.output)).file_uris()) == 1


@pytest.mark.parametrize("table", ["delta", "iceberg", "lance", "sql"], indirect=True)
def test_rows_that_cannot_fit_the_table_are_refused_before_the_job(table: TextTable) -> None:
    """The columns are known from the input, so no row is computed."""
    text = {"other": ["a"]} if table.format == "sql" else {"text": [[1]]}
    run_job(table.folder / "before", write_fields(table.format, table.folder), [pa.table(text)])
    job = table.job()
    job["spec"]["steps"] = [{"name": "all", "filter": "text != ''"}]
    report = table.run_job(job)
    assert (report.reason, "'text'" in (report.message or "")) == ("BadOutput", True)
    assert not Layout.of(parse(job).spec).lease_file.exists()


@pytest.mark.parametrize("table", MERGES, indirect=True)
def test_new_files_are_merged(table: TextTable) -> None:
    assert table.run().state == JobState.SUCCEEDED
    table.lines("b", ["b1", "a3"])
    assert table.run().state == JobState.SUCCEEDED
    assert COMPUTED == ["a1", "x a2", "a3", "b1", "a3"]
    assert (table.texts(), table.proven()) == (["a1", "a3", "b1"], True)


@pytest.mark.parametrize("table", MERGES, indirect=True)
def test_rows_with_the_same_key_are_not_computed_again(
    table: TextTable, messages: Messages
) -> None:
    table.lines("b", ["a1"])
    refused = table.run()
    assert refused.reason == "BadOutput"
    messages.check(refused.message or "")
    assert (len(COMPUTED), table.texts()) == (4, [])
    assert table.run("append").state == JobState.SUCCEEDED
    assert (len(COMPUTED), table.texts(), table.proven()) == (4, ["a1", "a1", "a3"], True)


@pytest.mark.parametrize("table", MERGES, indirect=True)
def test_verify_compares_the_keys(table: TextTable) -> None:
    assert table.run().state == JobState.SUCCEEDED
    if table.format == "delta":
        deltalake.DeltaTable(table.output).delete("text = 'a1'")
    elif table.format == "iceberg":
        catalog_of(table.folder).load_table("ns.rows").delete("text = 'a1'")
    else:
        with sa.create_engine(f"sqlite:///{table.folder}/data.db").begin() as connection:
            connection.execute(sa.text("DELETE FROM rows WHERE text = 'a1'"))
    repeated = {"repeatedKeys": 1} if table.format != "sql" else {}
    if repeated:
        append(table.format, table.folder, "a3")
    assert verified(table.output, "--trust-output").counts == {"missingKeys": 1, **repeated}
    (stored,) = table.folder.rglob("keys.parquet")
    stored.write_bytes(b"damaged")
    assert verified(table.output, "--trust-output").counts == {"state": 1}


@pytest.mark.parametrize("table", ["delta merge", "iceberg merge", "iceberg"], indirect=True)
def test_commit_that_gives_up_keeps_the_rows(
    table: TextTable, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """Another writer is faster than the job, as often as it tries."""
    assert table.run().state == JobState.SUCCEEDED
    table.lines("b", ["b1"])

    def always_late(mark: str, series: str, *_: object) -> Fence:
        return Fence(mark, series, lambda: append(table.format, table.folder, "z"), tries=3)

    with monkeypatch.context() as busy:
        busy.setattr(job_pass, "Fence", always_late)
        refused = table.run()
    assert refused.reason == "BadOutput"
    messages.check(refused.message or "")
    assert table.texts() == ["a1", "a3", "z", "z", "z"]
    computed = len(COMPUTED)
    assert table.run().state == JobState.SUCCEEDED
    assert len(COMPUTED) == computed
    assert (table.texts(), table.proven()) == (["a1", "a3", "b1", "z", "z", "z"], True)


LONG = pytest.mark.long("crash-points")


@pytest.mark.parametrize(
    "format_", ["delta", *(pytest.param(name, marks=LONG) for name in ("iceberg", "lance", "sql"))]
)
def test_every_row_is_in_the_table_once(format_: str, tmp_path: Path) -> None:
    table = TextTable(format_ if format_ == "lance" else f"{format_} merge", tmp_path)
    assert table.run().state == JobState.SUCCEEDED
    rows = ["a1", "a3", "b1"]
    with other_writers(format_, tmp_path):
        table.lines("b", ["b1"])
        assert table.run("append").state == JobState.SUCCEEDED
        if format_ != "lance":
            table.lines("c", ["a1", "c1"])
            assert table.run("merge").state == JobState.SUCCEEDED
            rows.append("c1")
    assert table.texts() == sorted([*rows, *rows_of_writers(tmp_path)])
    assert table.proven()
