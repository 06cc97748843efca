"""Columns of pickled Python objects are refused before a value is read, wherever they come from."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.data  # noqa: F401 - registers the extension type
from hypothesis import given
from hypothesis import strategies as st
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

from batchinference import pipeline
from batchinference.pipeline.arrow_files import (
    PICKLED,
    UnsafeColumn,
    checked,
    open_parquet,
    parquet_schema,
    read_stream,
    read_table,
    schema_of,
)
from batchinference.pipeline.failed_rows import Failed
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.inputs import FrozenInput, paths_of
from batchinference.pipeline.storage import FROM_ENVIRONMENT, Address
from batchinference.pipeline.verify import error_rows
from batchinference.spec.report import JobState
from support.jobs.on_ray import errors_of, job_document, run_in_process
from support.jobs.without_ray import invoke_without_ray
from support.outputs.rows import rows_of

EXTENSION = {"ARROW:extension:name": PICKLED, "ARROW:extension:metadata": ""}


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (self._marker, "w")


def hostile_table(marker: Path, /, rows: int = 3, **columns: Any) -> pa.Table:
    """Return a table with a column `evil` of pickles, as a program without Ray can write it."""
    content = [pickle.dumps(Payload(marker))] * rows
    evil = pa.field("evil", pa.large_binary(), metadata=EXTENSION)
    fields = [*(pa.field(name, pa.array(values).type) for name, values in columns.items()), evil]
    return pa.table([*columns.values(), content], schema=pa.schema(fields))


def write_hostile(file: Path, marker: Path, /, **columns: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(hostile_table(marker, **columns), file)
    return file


def test_payload_runs_code_without_the_check(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    table = pq.read_table(write_hostile(tmp_path / "a.parquet", marker))
    table.to_pylist()
    assert marker.exists()


KINDS = st.recursive(
    st.sampled_from([pa.int64(), pa.string(), ArrowPythonObjectType()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.struct([("a", pa.int8()), ("b", kind)])),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        inner.map(lambda kind: pa.dictionary(pa.int8(), kind)),
        inner.map(lambda kind: pa.run_end_encoded(pa.int32(), kind)),
        inner.map(lambda kind: pa.sparse_union([pa.field("u", kind)])),
    ),
    max_leaves=4,
)


@given(kind=KINDS)
def test_pickles_are_found_at_any_depth(kind: pa.DataType) -> None:
    schema = pa.schema([("plain", pa.int64()), ("column", kind)])
    if PICKLED in str(kind) or "ArrowPythonObjectType" in str(kind):
        with pytest.raises(UnsafeColumn, match="column 'column' holds pickled Python objects"):
            checked(schema)
    else:
        assert checked(schema) == schema


def test_pickles_are_found_if_ray_is_not_imported(tmp_path: Path) -> None:
    schema = hostile_table(tmp_path).schema
    nested = pa.schema([("outer", pa.struct([schema.field("evil")]))])
    for unsafe in (schema, nested):
        with pytest.raises(UnsafeColumn):
            checked(unsafe)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_each_way_to_read_refuses_pickles(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    file = write_hostile(tmp_path / "a.parquet", marker, good=[1, 2, 3])
    table = hostile_table(marker)
    ways: dict[str, Callable[[], Any]] = {
        "read_table": lambda: read_table(file),
        "open_parquet": lambda: open_parquet(file),
        "parquet_schema": lambda: parquet_schema(file),
        "schema_of": lambda: schema_of(table.schema.serialize().to_pybytes()),
        "read_stream": lambda: read_stream(stream(table)),
    }
    for name, read in ways.items():
        with pytest.raises(UnsafeColumn, match="column 'evil'"):
            pytest.fail(f"{name} has returned {read()}")
    assert read_table(file, columns=["good"]).to_pylist() == [{"good": n} for n in (1, 2, 3)]
    with pytest.raises(pa.ArrowInvalid, match="there is no column 'gone', or more than one"):
        read_table(file, columns=["good", "gone"])
    pq.write_table(pa.table([[1], [2]], names=["good", "good"]), file)
    with pytest.raises(pa.ArrowInvalid, match="there is no column 'good', or more than one"):
        read_table(file)
    assert not marker.exists()


def job(directory: Path, **read: Any) -> dict[str, Any]:
    fields = {"format": "parquet", **read}
    return job_document(
        "job", directory / "in", directory / "out", read=fields, errors={"maxPercent": 100}
    )


def test_input_file_with_pickles_is_a_failed_row(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    write_hostile(tmp_path / "in" / "evil.parquet", marker, good=[1, 2, 3])
    pq.write_table(pa.table({"good": [4]}), tmp_path / "in" / "fine.parquet")
    report = run_in_process(job(tmp_path)).report
    assert report.state is JobState.SUCCEEDED, report.message
    (error,) = errors_of(tmp_path / "out")
    assert "column 'evil' holds pickled Python objects" in error["error"]
    assert [row["good"] for row in rows_of(tmp_path / "out")] == [4]
    assert not marker.exists()


def test_columns_beside_pickles_can_be_read(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    write_hostile(tmp_path / "in" / "evil.parquet", marker, good=[1, 2, 3])
    report = run_in_process(job(tmp_path, options={"columns": ["good"]})).report
    assert report.state is JobState.SUCCEEDED, report.message
    assert sorted(row["good"] for row in rows_of(tmp_path / "out")) == [1, 2, 3]
    assert not marker.exists()


def test_field_of_a_struct_behind_a_dotted_name_is_checked(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    evil = hostile_table(marker)
    nested = pa.StructArray.from_arrays(
        [evil.column("evil").chunk(0)], fields=[evil.schema.field("evil").with_name("y")]
    )
    fields = [pa.field("x", nested.type), pa.field("x.y", pa.int64())]
    (tmp_path / "in").mkdir()
    table = pa.table([nested, pa.array([1, 2, 3])], schema=pa.schema(fields))
    pq.write_table(table, tmp_path / "in" / "evil.parquet")
    report = run_in_process(job(tmp_path, options={"columns": ["x.y"]})).report
    assert report.state is JobState.SUCCEEDED, report.message
    assert [row["x.y"] for row in rows_of(tmp_path / "out")] == [1, 2, 3]
    assert not marker.exists()


def hostile_column(name: str, file: Path, marker: Path) -> Path:
    """Write a file whose only column, of this name, holds pickles."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(hostile_table(marker).rename_columns([name]), file)
    return file


def test_manifest_of_pickles_is_a_failed_row(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile_column("uri", tmp_path / "in" / "evil.parquet", marker)
    run = run_in_process(job(tmp_path, format="manifest", options={"column": "uri"}))
    assert run.report.state is JobState.SUCCEEDED, run.report.message
    (error,) = errors_of(tmp_path / "out")
    assert "column 'uri' holds pickled Python objects" in error["error"]
    assert not marker.exists()


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """Return the output of a finished job with a column of embeddings."""
    (tmp_path / "in").mkdir()
    table = pa.table({"text": ["a", "b"], "embedding": [[1.0, 0.0], [0.0, 1.0]]})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    done = job(tmp_path)
    done["spec"]["write"]["format"] = "parquet"
    assert run_in_process(done).report.state is JobState.SUCCEEDED
    return tmp_path / "out"


def test_search_in_an_output_with_pickles_is_refused(complete: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (file,) = complete.glob("part-*")
    write_hostile(file, marker, text=["a", "b", "c"], embedding=[[1.0, 0.0]] * 3)
    done = invoke_without_ray("search", str(complete), "--row", "0")
    assert done.exit_code == 2, done.stderr
    assert "column 'evil' holds pickled Python objects" in " ".join(done.stderr.split())
    assert not marker.exists()


def test_state_files_with_pickles_are_refused(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    frozen = Address(str(hostile_column("path", tmp_path / "input.parquet", marker)))
    failed = Address(str(hostile_column("id", tmp_path / "errors.parquet", marker)))
    ways: dict[str, Callable[[], Any]] = {
        "the driver's list of files": lambda: FrozenInput.parse(frozen.read(), FROM_ENVIRONMENT),
        "a worker's list of files": lambda: paths_of(frozen),
        "failed rows to retry": lambda: Failed.read(failed),
        "failed rows to verify": lambda: error_rows._ids(failed),
    }
    for name, read in ways.items():
        with pytest.raises((UnsafeColumn, BadOutput)):
            pytest.fail(f"{name}: {read()}")
    assert not marker.exists()


READS = {"read_table", "ParquetFile", "read_schema", "open_stream", "open_file", "read_metadata",
         "read_pandas", "ParquetDataset", "read_feather", "read_message"}  # fmt: skip
"""Functions of pyarrow that read Arrow or Parquet data."""
CHECKED = {
    "arrow_files.py",
    "readers/parquet.py",  # checks the columns that are wanted
}


def test_no_module_reads_arrow_data_past_the_check() -> None:
    root = Path(pipeline.__file__).parent
    found = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in root.rglob("*.py")
        if str(file.relative_to(root)) not in CHECKED
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in READS
        and ast.unparse(node.value) in ("pq", "pa.ipc", "pyarrow.parquet", "pf", "feather")
    ]
    assert found == []
