"""Jobs with the mode merge: new files, a key that turns out to be wrong, and `verify`."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa

from batchinference.pipeline.commit import attempt, table_commit
from batchinference.pipeline.commit.table_commit import Fence
from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.jobs.text_table import COMPUTED, TextTable
from support.outputs.tables import catalog_of
from support.outputs.verify_command import verified

FORMATS = ["delta merge", "iceberg merge", "sql merge"]


@pytest.fixture(params=FORMATS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TextTable:
    COMPUTED.clear()
    return TextTable(request.param, tmp_path)


def append_row(table: TextTable, text: str) -> None:
    """Add a row to the table as another program does."""
    row = pa.table({"text": [text]})
    if table.format == "delta":
        deltalake.write_deltalake(table.output, row, mode="append", schema_mode="merge")
    else:
        catalog_of(table.place).load_table("ns.rows").append(row)


def test_new_files_are_merged(table: TextTable) -> None:
    assert table.run().state == JobState.SUCCEEDED
    table.lines("b", ["b1", "a3"])
    assert table.run().state == JobState.SUCCEEDED
    assert COMPUTED == ["a1", "x a2", "a3", "b1", "a3"]
    assert (table.texts(), table.proven()) == (["a1", "a3", "b1"], True)


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


def test_verify_compares_the_keys(table: TextTable) -> None:
    assert table.run().state == JobState.SUCCEEDED
    if table.format == "delta":
        deltalake.DeltaTable(table.output).delete("text = 'a1'")
    elif table.format == "iceberg":
        catalog_of(table.place).load_table("ns.rows").delete("text = 'a1'")
    else:
        with sa.create_engine(f"sqlite:///{table.place}/data.db").begin() as connection:
            connection.execute(sa.text("DELETE FROM rows WHERE text = 'a1'"))
    repeated = {"repeatedKeys": 1} if table.format != "sql" else {}
    if repeated:
        append_row(table, "a3")
    assert verified(table.output, "--trust-output").found == {"missingKeys": 1, **repeated}


@pytest.mark.parametrize("table", ["delta merge", "iceberg merge", "iceberg"], indirect=True)
def test_commit_that_gives_up_keeps_the_rows(
    table: TextTable, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """Another writer is faster than the job, as often as it tries."""
    assert table.run().state == JobState.SUCCEEDED
    table.lines("b", ["b1"])
    monkeypatch.setattr(table_commit, "ATTEMPTS", 3)

    def always_late(mark: str, series: str, *_: object) -> Fence:
        return Fence(mark, series, lambda: append_row(table, "z"))

    with monkeypatch.context() as busy:
        busy.setattr(attempt, "Fence", always_late)
        refused = table.run()
    assert refused.reason == "BadOutput"
    messages.check(refused.message or "")
    assert table.texts() == ["a1", "a3", "z", "z", "z"]
    computed = len(COMPUTED)
    assert table.run().state == JobState.SUCCEEDED
    assert len(COMPUTED) == computed
    assert (table.texts(), table.proven()) == (["a1", "a3", "b1", "z", "z", "z"], True)
