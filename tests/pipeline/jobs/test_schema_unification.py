"""All Parquet files of an output have the same columns and types, for any rows in each task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest_entry import DataFile
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.output.file_rewrites import RewriteTask
from batchinference.spec import parse
from batchinference.spec.report import JobState
from support.documents.minimal import Document, document, python_step
from support.jobs.on_ray import data_files, run_job

pytestmark = pytest.mark.usefixtures("ray")


def lines(directory: Path, files: list[list[dict[str, Any]]]) -> Path:
    directory.mkdir()
    for number, rows in enumerate(files):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / f"{number}.jsonl").write_text(text)
    return directory


def uneven(source: Path, output: Path, **write: Any) -> Document:
    return document(
        "uneven",
        read={"format": "json", "paths": [str(source)]},
        steps=[python_step("own", "own_code:uneven")],
        write={"format": "parquet", "path": str(output), "rowsPerFile": 1000, **write},
    )


def run(source: Path, output: Path) -> JobState:
    return run_job(uneven(source, output)).report.state


def test_empty_columns_get_the_type_of_other_files(tmp_path: Path) -> None:
    files = [[{"n": 10 * file + row} for row in range(3)] for file in range(4)]
    assert run(lines(tmp_path / "in", files), tmp_path / "out") == JobState.SUCCEEDED
    parts = data_files(tmp_path / "out")
    assert len(parts) > 1
    schemas = {str(pq.read_schema(part).remove_metadata()) for part in parts}
    assert len(schemas) == 1, schemas
    read = pads.dataset(parts).to_table().sort_by("n").to_pylist()
    assert [row["n"] for row in read] == [10 * file + row for file in range(4) for row in range(3)]
    assert {row["score"] for row in read if row["n"] < 20} == {None}
    assert {row["score"] for row in read if row["n"] >= 20} == {0.5}
    assert {row["tags"] and tuple(row["tags"]) for row in read if row["n"] >= 20} == {("a", "b")}
    query = f"select count(score), count(extra) from '{tmp_path}/out/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(6, 3)]


def test_snapshot_names_the_rewritten_files(tmp_path: Path) -> None:
    job = uneven(lines(tmp_path / "in", [[{"n": 10 * n}] for n in range(4)]), tmp_path / "out")
    assert run_job(job).report.state == JobState.SUCCEEDED
    layout = Layout.of(parse(job).spec)
    end = Snapshot.read(layout.end, layout.key)
    contents = {file.name: file.read_bytes() for file in data_files(tmp_path / "out")}
    named = {file.name: file for entry in end.entries for file in entry.data}
    assert named == {name: DataFile.of(name, content) for name, content in contents.items()}
    schema = pads.dataset(data_files(tmp_path / "out")).schema
    columns = {(field.name, str(field.type)) for field in schema}
    assert all(set(entry.columns) == columns for entry in end.entries if entry.data)


def test_column_without_values_keeps_its_type(tmp_path: Path) -> None:
    files = [[{"n": file}] for file in range(2)]
    assert run(lines(tmp_path / "in", files), tmp_path / "out") == JobState.SUCCEEDED
    schema = pads.dataset(data_files(tmp_path / "out")).schema
    assert schema.field("score").type == pa.null()


def test_files_with_one_schema_are_not_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rewrite: object) -> None:
        raise AssertionError("a file is written anew")

    monkeypatch.setattr(RewriteTask, "__call__", refuse)
    files = [[{"n": 20 + file}] for file in range(3)]
    assert run(lines(tmp_path / "in", files), tmp_path / "out") == JobState.SUCCEEDED
