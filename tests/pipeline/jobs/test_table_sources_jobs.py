"""Whole jobs over sources that are not files."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.inputs.table_sources import ROWS, database, lance_set, saved
from support.jobs.on_ray import errors_of, job_document, run_in_process
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")

STEPS = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]
BAD = 57
"""The id of the row for which the step raises."""


def source(format_: str, directory: Path) -> Document:
    """Write a source with one bad row, and return its `read` fields."""
    rows = [{**row, "text": "bad row"} if row["id"] == BAD else row for row in ROWS]
    match format_:
        case "sql":
            options = {"shardKeys": ["id"], "shardHashFn": "ABS", "overrideNumBlocks": 2}
            url, query = database(directory / "a.db", rows), "SELECT * FROM texts"
            return {"url": url, "query": query, "options": options}
        case "huggingface":
            name = str(saved(directory / "set", rows))
            return {"name": name, "options": {"split": "train", "overrideNumBlocks": 2}}
    return {"path": str(lance_set(directory / "a.lance", rows))}


@pytest.mark.parametrize(
    ("format_", "origin"),
    [("sql", ("sql:1", 28)), ("huggingface", ("huggingface:0", 57)), ("lance", ("lance:1", 17))],
)
def test_table_source_is_read_and_counted_like_files(
    tmp_path: Path, format_: str, origin: tuple[str, int]
) -> None:
    job = job_document("source", "unused", tmp_path / "out", steps=STEPS, errors={"maxRows": 1})
    job["spec"]["read"] = {"format": format_, **source(format_, tmp_path)}
    run = run_in_process(job)
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    assert run.counts == (120, 119, 1, 0)
    assert run.published[-1].progress is not None
    written = sorted(rows_of(tmp_path / "out"), key=lambda row: int(row["id"]))
    assert written == [row for row in ROWS if row["id"] != BAD]
    (error,) = errors_of(tmp_path / "out")
    assert ((error["path"], error["row"]), error["step"]) == (origin, "own")
