"""Outputs without rows: they have columns, and the libraries that people use can read them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from batchinference.api.run import Result
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Result as Verdict
from batchinference.pipeline.verify.verify import verify
from batchinference.spec import parse
from batchinference.spec.report import JobState, Report
from support.documents.minimal import Document
from support.jobs.crash_points import Recording, Site, every_step, on_disk
from support.jobs.on_ray import data_files, job_document, run_in_process
from support.outputs.tables import catalog_of, write_fields

pytestmark = pytest.mark.usefixtures("own_code")
TYPES = {
    "id": pa.int64(),
    "kind": pa.string(),
    "score": pa.float32(),
    "when": pa.timestamp("us", tz="UTC"),
    "tags": pa.list_(pa.string()),
    "about": pa.struct([("x", pa.int32())]),
}
FEW = {
    "id": [1, 2, 3],
    "kind": ["a", "b", "b"],
    "score": [0.5, 1.5, None],
    "when": [0, 1, 2],
    "tags": [[], ["x"], None],
    "about": [{"x": 1}, None, None],
}
NONE = {"name": "none", "filter": "id > 100"}
_HTTP = {"runtime": "http", "url": "http://127.0.0.1:9/v1", "inputs": {"t": "id"}}
_JSON = {**_HTTP, "api": "json", "body": {"t": "{t}"}}
UNKNOWN = {**_JSON, "resultType": "numbers", "output": "unknown"}
WITH_UNKNOWN = [NONE, {"name": "model", "model": UNKNOWN}]
"""Steps after which a column has an unknown type."""


def with_vector(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the batch with a column of vectors."""
    return {**batch, "vector": np.zeros((len(batch["id"]), 2, 3), np.float32)}


class Same:
    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return batch


def failing(batch: dict[str, np.ndarray], until: str = "") -> dict[str, Any]:
    """Fail until a file exists."""
    if not (until and Path(until).exists()):
        raise ValueError("no row is good")
    return batch


def python(function: str, arguments: Document | None = None, **fields: Any) -> Document:
    code = {"callable": f"{__name__}:{function}", "callArgs": arguments or {}}
    return {"name": function.replace("_", "-").lower(), "python": code, **fields}


either_plan = pytest.mark.parametrize(
    "first", [[], [python("Same", replicas={"min": 1, "max": 1})]], ids=["in tasks", "in actors"]
)
"""The first steps of a job that is one segment, and of a job with an actor pool."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write a Parquet file with three rows."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(FEW, pa.schema(list(TYPES.items()))), tmp_path / "in" / "a.parquet")
    return tmp_path / "in"


def run(source: Path, steps: list[Document], **spec: Any) -> Path:
    """Run a job that writes no row, check that verify proves its output, and return this."""
    output = source.parent / spec.pop("name", "out")
    report = succeed(job_of(source, output, steps, **spec))
    assert report.counts is not None
    assert report.counts.written == 0
    assert verdict(output) is Verdict.PROVEN
    return output


def succeed(job: Document) -> Report:
    report = run_in_process(job).report
    assert report.state is JobState.SUCCEEDED, report.message
    return report


def job_of(source: Path, output: Path, steps: list[Document], **spec: Any) -> Document:
    read = {"format": "parquet", **spec.pop("read", {})}
    write = {"format": "parquet", **spec.pop("write", {})}
    errors = {"maxPercent": 100, **spec.pop("errors", {})}
    return job_document(
        "empty", source, output, read=read, write=write, steps=steps, errors=errors, **spec
    )


def verdict(output: Path) -> Verdict:
    return verify(Location(str(output)), trusted=True).result


def schema_of(output: Path) -> pa.Schema:
    """Return the schema of the only file of an output, which has no rows."""
    (file,) = data_files(output)
    table = pq.read_table(file)
    assert table.num_rows == 0
    return table.schema


@either_plan
def test_filtered_output_has_the_types_of_its_rows(source: Path, first: list[Document]) -> None:
    output = run(source, [*first, python("with_vector"), NONE])
    vectors = pa.list_(pa.list_(pa.float32()))
    assert schema_of(output) == pa.schema([*TYPES.items(), ("vector", vectors)])


@either_plan
def test_steps_after_the_last_row_add_their_columns(source: Path, first: list[Document]) -> None:
    steps = [
        *first,
        NONE,
        {"name": "more", "addColumns": {"twice": "id * 2", "text": "kind"}},
        {"name": "each", "explode": {"column": "tags"}},
        {"name": "new", "renameColumns": {"about": "facts"}},
        {"name": "less", "dropColumns": ["when", "score"]},
    ]
    names = {"id": pa.int64(), "kind": pa.string(), "tags": pa.string(), "facts": TYPES["about"]}
    expected = pa.schema([*names.items(), ("twice", pa.int64()), ("text", pa.string())])
    assert schema_of(run(source, steps)) == expected


def test_models_that_no_row_has_reached_add_their_columns(source: Path) -> None:
    chat = {**_HTTP, "api": "chat", "name": "m", "prompt": "{t}", "output": "answer"}
    count = {**UNKNOWN, "resultType": "integer", "output": "count"}
    steps = [*WITH_UNKNOWN, {"name": "chat", "model": chat}, {"name": "count", "model": count}]
    # Spark before 4.1 cannot read the type null
    added = {"unknown": pa.string(), "answer": pa.string(), "count": pa.int64()}
    assert schema_of(run(source, steps)) == pa.schema([*TYPES.items(), *added.items()])


def test_output_of_failed_rows_has_the_columns_of_the_failed_step(source: Path) -> None:
    output = run(source, [python("failing"), {"name": "s", "selectColumns": ["id", "new"]}])
    assert schema_of(output) == pa.schema([("id", pa.string()), ("new", pa.string())])
    decode = {"column": "kind", "format": "json", "fields": {"x": "int64"}}
    output = run(source, [{"name": "bad", "decode": decode}], name="types")
    known = {**TYPES, "kind": pa.struct([("x", pa.int64())])}
    assert schema_of(output) == pa.schema(list(known.items()))


def test_damaged_rows_have_the_types_of_the_other_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": pa.array([1] * 1000, pa.int16())}), tmp_path / "in" / "a.parquet")
    content = bytearray((tmp_path / "in" / "a.parquet").read_bytes())
    content[4:60] = b"\xff" * 56
    (tmp_path / "in" / "a.parquet").write_bytes(content)
    output = run(tmp_path / "in", [{"name": "twice", "addColumns": {"more": "n * 2"}}])
    assert schema_of(output).types == [pa.int16(), pa.int64()]


def test_columns_that_user_code_would_add_are_left_out(source: Path) -> None:
    more = {"name": "more", "addColumns": {"twice": "id * 2"}}
    output = run(source, [python("failing"), more])
    assert schema_of(output) == pa.schema([*TYPES.items(), ("twice", pa.int64())])


def test_damaged_input_has_the_columns_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"no picture")
    steps = [{"name": "size", "addColumns": {"n": "path"}}]
    write = {"columns": ["n", "path"]}
    read = {"format": "images", "options": {"includePaths": True}}
    output = run(tmp_path / "in", steps, read=read, write=write)
    assert schema_of(output).names == ["n", "path"]


def stored(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


NO_TABLE = stored(lambda file: pq.write_table(pa.schema([*TYPES.items()]).empty_table(), file))
NO_ARRAY = stored(lambda file: np.save(file, np.zeros((0, 3), np.float32)))


@pytest.mark.parametrize(
    ("format_", "file", "content", "types"),
    [
        ("csv", "a.csv", b"id,text\n", {"id": pa.string(), "text": pa.string()}),
        ("parquet", "a.parquet", NO_TABLE, TYPES),
        ("numpy", "a.npy", NO_ARRAY, {"data": pa.list_(pa.float32())}),
        ("json", "a.jsonl", b"\n", {}),
        ("text", "", b"", {"text": pa.string()}),
        ("images", "", b"", {"image": pa.string()}),
        ("parquet", "", b"", {}),
    ],
)
def test_input_without_rows_or_files_gives_the_columns_that_are_known(
    tmp_path: Path, format_: str, file: str, content: bytes, types: dict[str, pa.DataType]
) -> None:
    (tmp_path / "in").mkdir()
    if file:
        (tmp_path / "in" / file).write_bytes(content)
    output = run(tmp_path / "in", [], read={"format": format_, "allowEmpty": True})
    schemas = [pq.read_schema(file) for file in data_files(output)]
    assert schemas == ([pa.schema([*types.items()])] if types else [])


def test_layout_of_the_columns_is_that_of_rows(source: Path) -> None:
    write = {"columns": ["score", "id"], "partitionBy": ["kind"], "rowNumber": "row"}
    output = run(source, [NONE], write=write)
    assert schema_of(output).names == ["row", "score", "id", "kind"]
    assert list(pd.read_parquet(output).columns) == ["row", "score", "id", "kind"]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_text_files_without_rows_are_read_by_libraries(source: Path, compression: str) -> None:
    more = {"name": "more", "addColumns": {'a "name"': "id"}}
    write = {"format": "csv", "compression": compression}
    (file,) = data_files(run(source, [*WITH_UNKNOWN, more], write=write))
    names = [*TYPES, "unknown", 'a "name"']
    assert list(pd.read_csv(file).columns) == names
    assert duckdb.sql(f"select * from read_csv('{file}')").columns == names
    (file,) = data_files(run(source, [NONE], name="json", write={**write, "format": "json"}))
    assert len(pd.read_json(file, lines=True)) == 0
    assert duckdb.sql(f"select * from read_json('{file}')").fetchall() == []


def test_archive_without_rows_is_empty(source: Path) -> None:
    (file,) = data_files(run(source, [NONE], write={"format": "webdataset", "keyColumn": "id"}))
    with tarfile.open(file) as archive:
        assert archive.getnames() == []


@pytest.mark.parametrize(
    "write", [{"format": name} for name in ("parquet", "csv", "json", "webdataset", "delta")]
)
def test_api_returns_the_columns_and_types(source: Path, write: Document) -> None:
    steps = [{"name": "s", "selectColumns": ["id", "kind", "tags"]}, NONE]
    document = job_of(source, source.parent / "out", steps, write=write)
    report = run_in_process(document).report
    result = Result(parse(document), report)
    types = [(name, TYPES[name]) for name in ("id", "kind", "tags")]
    assert result.to_arrow() == pa.schema(types).empty_table()
    assert list(result.to_pandas().columns) == ["id", "kind", "tags"]


TABLES = ("delta", "lance", "iceberg", "sql")


def columns_of_table(directory: Path, write: Document) -> list[str]:
    output = str(directory / "out")
    match write["format"]:
        case "delta":
            return list(pa.schema(deltalake.DeltaTable(output).schema().to_arrow()).names)
        case "lance":
            return list(lance.dataset(output).schema.names)
        case "iceberg":
            return list(catalog_of(directory).load_table("ns.rows").schema().as_arrow().names)
    return [
        column["name"] for column in sa.inspect(sa.create_engine(write["url"])).get_columns("rows")
    ]


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
@pytest.mark.parametrize("kind", TABLES)
def test_table_is_created_without_rows(source: Path, kind: str, mode: str) -> None:
    write = {**write_fields(kind, source.parent), "mode": mode}
    run(source, [python("with_vector"), NONE], write=write)
    assert columns_of_table(source.parent, write) == [*TYPES, "vector"]
    # rows can be added later
    pq.write_table(pq.read_table(source / "a.parquet"), source / "b.parquet")
    added = {**write, "mode": "append"}
    document = job_of(source, source.parent / "out", [python("with_vector")], write=added)
    document["metadata"]["name"] = "other"
    succeed(document)
    assert columns_of_table(source.parent, write) == [*TYPES, "vector"]


@pytest.mark.parametrize("kind", TABLES)
def test_existing_table_keeps_its_columns(source: Path, kind: str) -> None:
    write = write_fields(kind, source.parent)
    output = source.parent / "out"
    few = [{"name": "s", "selectColumns": ["id", "kind"]}]
    for steps, mode in ((few, "error"), ([NONE, *few], "append"), ([NONE, *few], "overwrite")):
        document = job_of(source, output, steps, write={**write, "mode": mode})
        document["metadata"]["name"] = mode
        succeed(document)
        assert columns_of_table(source.parent, write) == ["id", "kind"]
        assert verdict(output) is Verdict.PROVEN


def test_table_is_not_created_with_a_column_of_unknown_type(source: Path) -> None:
    run(source, WITH_UNKNOWN, write={"format": "delta"})
    assert not deltalake.DeltaTable.is_deltatable(str(source.parent / "out"))


def test_append_adds_no_second_file_and_keeps_the_types(source: Path) -> None:
    write = {"mode": "append"}
    output = run(source, [NONE], write=write)
    (first,) = data_files(output)
    few = pq.read_table(source / "a.parquet")
    pq.write_table(few, source / "b.parquet")
    document = job_of(source, output, [NONE], write=write)
    succeed(document)
    assert data_files(output) == [first]
    pq.write_table(few.set_column(0, "id", pa.array([1, 101, 2])), source / "c.parquet")
    succeed(document)
    assert pd.read_parquet(output)["id"].tolist() == [101]
    assert verdict(output) is Verdict.PROVEN


@pytest.mark.parametrize(
    ("steps", "write", "others"),
    [
        (WITH_UNKNOWN, {}, []),
        ([python("failing")], {}, []),
        ([NONE], {"partitionBy": ["kind"]}, []),
        ([NONE], {}, ["theirs.parquet"]),
    ],
)
def test_append_writes_no_file_that_could_contradict_later_rows(
    source: Path, steps: list[Document], write: Document, others: list[str]
) -> None:
    (source.parent / "out").mkdir()
    for name in others:
        pq.write_table(pa.table({"id": [7]}), source.parent / "out" / name)
    output = run(source, steps, write={"mode": "append", **write})
    assert [file.name for file in data_files(output)] == others


def test_overwrite_replaces_rows_by_columns_and_columns_by_rows(source: Path) -> None:
    output = source.parent / "out"
    run_in_process(job_of(source, output, []))
    run(source, [NONE], write={"mode": "overwrite"})
    assert schema_of(output).names == list(TYPES)
    succeed(job_of(source, output, [], write={"mode": "overwrite"}))
    assert len(pd.read_parquet(output)) == 3
    assert len(data_files(output)) == 1


def test_retried_rows_replace_the_file_without_rows(source: Path) -> None:
    good = source.parent / "good"
    steps = [python("failing", {"until": str(good)}), {"name": "s", "selectColumns": ["id"]}]
    output = run(source, steps)
    assert schema_of(output).names == ["id"]
    good.touch()
    succeed(job_of(source, output, steps, errors={"retryFailedRows": True}))
    assert sorted(pd.read_parquet(output)["id"]) == [1, 2, 3]
    assert pads.dataset(output).schema.field("id").type == pa.int64()
    assert verdict(output) is Verdict.PROVEN


@on_disk
def test_job_that_died_at_any_step_leaves_one_file(site: Site) -> None:
    job = site.job("out")
    job["spec"]["steps"].append({"name": "none", "filter": "n > 100"})
    recording = Recording(site, job)
    output = site.directory / "out"
    assert "write part-*.parquet" in recording.steps

    def check(step: int) -> list[str]:
        report = site.run_again(job)
        files = data_files(output)
        wrong = [] if report.state is JobState.SUCCEEDED else [str(report.message)]
        wrong += [] if len(files) == 1 else [f"{len(files)} files"]
        return wrong if verdict(output) is Verdict.PROVEN else [*wrong, "not proven"]

    assert recording.faults(check, every_step(recording.steps)) == {}
