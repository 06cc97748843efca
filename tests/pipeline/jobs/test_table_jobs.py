"""Jobs that write a table have the guarantees of jobs that write files."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from batchinference.spec.report import JobState
from support.jobs.table_writes import run_job
from support.jobs.text_table import COMPUTED, TextTable
from support.outputs.tables import write_fields

FORMATS = ["delta", "iceberg", "lance", "sql"]
ALL = ["a1", "a3", "b1"]


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TextTable:
    table = TextTable(request.param, tmp_path)
    table.lines("b", ["b1"])
    COMPUTED.clear()
    return table


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_staged_files_that_cannot_be_deleted_are_deleted_by_the_next_run(
    table: TextTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = table.output / "_batchinference" / "staged"
    real = Location.delete_directory

    def refuse(place: Location) -> None:
        if Path(place.path) == staged and (table.output / "_SUCCESS").exists():
            raise PermissionError("access denied")
        real(place)

    with monkeypatch.context() as refusing:
        refusing.setattr(Location, "delete_directory", refuse)
        assert table.run("error").state == JobState.SUCCEEDED
    assert staged.exists()
    assert table.run("error").state == JobState.SUCCEEDED
    assert (staged.exists(), table.texts(), table.proven()) == (False, ALL, True)


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_small_files_are_merged_before_they_are_registered(table: TextTable) -> None:
    assert table.run().state == JobState.SUCCEEDED
    assert len(deltalake.DeltaTable(str(table.output)).file_uris()) == 1


@pytest.mark.parametrize("table", FORMATS, indirect=True)
def test_rows_that_cannot_fit_the_table_are_refused_before_the_job(table: TextTable) -> None:
    """The columns are known from the input, so no row is computed."""
    text = {"other": ["a"]} if table.format == "sql" else {"text": [[1]]}
    run_job(table.place / "before", write_fields(table.format, table.place), [pa.table(text)])
    job = table.job()
    job["spec"]["steps"] = [{"name": "all", "filter": "text != ''"}]
    report = table.run_job(job)
    assert (report.reason, "'text'" in (report.message or "")) == ("BadOutput", True)
    assert not Layout.of(parse(job).spec).job.exists()
