"""Columns of pickled Python objects from any source are rejected before a value is read."""

from __future__ import annotations

import ast
import importlib
import io
import os
import pickle
import subprocess
import sys
import threading
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

import batchinference
from batchinference import pipeline
from batchinference.pipeline import remove_autoload
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.commit.retry_failed_rows import failed_ids
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.input.input_snapshot import InputSnapshot, paths_of
from batchinference.pipeline.storage.arrow_files import (
    PICKLED,
    UnsafeColumn,
    open_parquet,
    read_stream,
    read_table,
    refuse_pickles,
    schema_of,
)
from batchinference.pipeline.storage.location import FROM_ENVIRONMENT, Location
from batchinference.pipeline.verify.row_check import wrong_errors
from batchinference.spec.progress import Counts
from plugins.messages import Messages
from support.inputs.read_files import read_files

EXTENSION = {"ARROW:extension:name": PICKLED, "ARROW:extension:metadata": ""}


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (self._marker, "w")


def hostile_table(marker: Path, /, rows: int = 3, **columns: Any) -> pa.Table:
    """Return a table with a column `evil` of pickles, in a form that needs no Ray to write."""
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
            refuse_pickles(schema)
    else:
        assert refuse_pickles(schema) == schema


def test_pickles_are_found_if_ray_is_not_imported(tmp_path: Path) -> None:
    schema = hostile_table(tmp_path).schema
    nested = pa.schema([("outer", pa.struct([schema.field("evil")]))])
    for unsafe in (schema, nested):
        with pytest.raises(UnsafeColumn):
            refuse_pickles(unsafe)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_each_way_to_read_refuses_pickles(tmp_path: Path, messages: Messages) -> None:
    marker = tmp_path / "marker"
    file = write_hostile(tmp_path / "a.parquet", marker, good=[1, 2, 3])
    table = hostile_table(marker)
    ways: dict[str, Callable[[], Any]] = {
        "read_table": lambda: read_table(pa.OSFile(str(file))),
        "open_parquet": lambda: open_parquet(file),
        "schema_of": lambda: schema_of(table.schema.serialize().to_pybytes()),
        "read_stream": lambda: read_stream(stream(table)),
    }
    for name, read in ways.items():
        with pytest.raises(UnsafeColumn, match="column 'evil'"):
            pytest.fail(f"{name} has returned {read()}")
    assert read_table(pa.OSFile(str(file)), columns=["good"]).to_pylist() == [
        {"good": n} for n in (1, 2, 3)
    ]
    with messages.raises(pa.ArrowInvalid):
        read_table(pa.OSFile(str(file)), columns=["good", "gone"])
    pq.write_table(pa.table([[1], [2]], names=["good", "good"]), file)
    with messages.raises(pa.ArrowInvalid):
        read_table(pa.OSFile(str(file)))
    assert not marker.exists()


def test_input_file_with_pickles_is_a_failed_row(tmp_path: Path, messages: Messages) -> None:
    marker = tmp_path / "marker"
    write_hostile(tmp_path / "in" / "evil.parquet", marker, good=[1, 2, 3])
    pq.write_table(pa.table({"good": [4]}), tmp_path / "in" / "fine.parquet")
    outcome = read_files("parquet", tmp_path / "in")
    (error,) = outcome.bad.values()
    messages.check(error)
    assert [row["good"] for row in outcome.good] == [4]
    assert not marker.exists()


def test_field_of_a_struct_behind_a_dotted_name_is_checked(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    evil = hostile_table(marker)
    nested = pa.StructArray.from_arrays(
        [evil.column("evil").chunk(0)], fields=[evil.schema.field("evil").with_name("y")]
    )
    fields = [pa.field("x", nested.type), pa.field("x.y", pa.int64())]
    table = pa.table([nested, pa.array([1, 2, 3])], schema=pa.schema(fields))
    pq.write_table(table, tmp_path / "evil.parquet")
    rows = read_files("parquet", tmp_path, columns=["x.y"]).good
    assert rows == [{"x.y": n} for n in (1, 2, 3)]
    assert not marker.exists()


def hostile_column(name: str, file: Path, marker: Path) -> Path:
    """Write a file whose only column has this name and holds pickles."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(hostile_table(marker).rename_columns([name]), file)
    return file


def test_manifest_of_pickles_is_a_failed_row(tmp_path: Path, messages: Messages) -> None:
    marker = tmp_path / "marker"
    hostile_column("uri", tmp_path / "evil.parquet", marker)
    outcome = read_files("manifest", tmp_path, column="uri")
    messages.check(*outcome.bad.values())
    assert (list(outcome.bad), outcome.good) == ([(0, 0)], [])
    assert not marker.exists()


def test_state_files_with_pickles_are_refused(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    frozen = Location(str(hostile_column("path", tmp_path / "input.parquet", marker)))
    failed = Location(str(hostile_column("id", tmp_path / "errors.parquet", marker)))
    entry = ManifestEntry(Counts(), [], [], [], [], None)
    ways: dict[str, Callable[[], Any]] = {
        "the driver's list of files": lambda: InputSnapshot.parse(frozen.read(), FROM_ENVIRONMENT),
        "a worker's list of files": lambda: paths_of(frozen, "a digest"),
        "failed rows to retry": lambda: failed_ids(failed),
        "failed rows to verify": lambda: wrong_errors(entry, failed),
    }
    for name, read in ways.items():
        with pytest.raises((UnsafeColumn, BadOutput)):
            pytest.fail(f"{name}: {read()}")
    assert not marker.exists()


READS = {
    *(f"pyarrow.parquet.{name}" for name in (
        "read_table", "read_pandas", "read_schema", "read_metadata", "ParquetFile",
        "ParquetDataset")),
    *(f"pyarrow.ipc.{name}" for name in (
        "open_stream", "open_file", "read_schema", "read_message", "read_record_batch",
        "read_tensor", "RecordBatchStreamReader", "RecordBatchFileReader")),
    *(f"pyarrow.feather.{name}" for name in ("read_feather", "read_table", "FeatherDataset")),
    *(f"pyarrow.dataset.{name}" for name in (
        "dataset", "parquet_dataset", "Scanner", "FileSystemDataset",
        "FileSystemDatasetFactory")),
    *("pyarrow.orc.read_table", "pyarrow.orc.ORCFile"),
    *("pandas.read_parquet", "pandas.read_feather", "pandas.read_orc", "pandas.read_pickle"),
    *("lance.dataset", "lance.LanceDataset", "lance.file.LanceFileReader"),
    *("datasets.load_dataset", "datasets.load_from_disk", "datasets.Dataset.from_parquet",
      "datasets.Dataset.from_file"),
    *("deltalake.DeltaTable", "pyiceberg.catalog.load_catalog"),
    *("ray.data.read_parquet", "pickle.load", "pickle.loads", "cloudpickle.load",
      "cloudpickle.loads", "ray.cloudpickle.loads", "ray.cloudpickle.load"),
}  # fmt: skip
"""Functions and classes that read Arrow data or unpickle."""
METHODS = {"to_pyarrow_dataset", "to_pyarrow_table", "to_table"}
"""Methods of tables and data sets that read Arrow data."""
CHECKED = {
    "pipeline/output/output_rows.py": "reads from a dataset with a checked schema",
    "pipeline/storage/arrow_files.py": "the check itself",
    "pipeline/execution/segment.py": "unpickles what the driver has pickled",
    "pipeline/input/parquet_file.py": "checks the columns that are wanted; else only metadata",
    "pipeline/expression/__init__.py": "reads from a table in memory",
    "pipeline/output/tables/delta.py": "checks the first rows; all else is metadata",
    "pipeline/output/tables/lance.py": "checks the first rows; else only metadata and row numbers",
    "pipeline/input/sources/lance.py": "only metadata; TableInput checks what tasks read",
    "pipeline/input/documents/pdf_subprocess.py": "unpickles what its own process has pickled",
    "pipeline/input/file_pruning.py": "reads nothing: it compares bounds in memory",
    "pipeline/input/tables/delta.py": "only metadata; the Parquet reader checks the files",
    "pipeline/output/tables/iceberg_merge.py": "checks each scan",
    "pipeline/storage/iceberg_catalog.py": "only metadata",
    "pipeline/input/sources/huggingface.py": "TableInput checks what tasks read",
}


def reads_in(source: str) -> list[str]:
    """Return the lines in which a module reads Arrow data or unpickles, under any import alias."""
    tree = ast.parse(source)
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.partition(".")[0]
                names[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}"
                      for alias in node.names}  # fmt: skip
    result = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            known = f"{names[first]}.{rest}".rstrip(".") if first in names else ""
            method = isinstance(node, ast.Attribute) and node.attr in METHODS
            if known in READS or method:
                result.append(f"{node.lineno}: {ast.unparse(node)}")
    return result


@pytest.mark.parametrize(
    "source",
    [
        "import pyarrow.parquet as x\nx.read_table('a')",
        "import pyarrow.parquet\npyarrow.parquet.ParquetFile('a')",
        "from pyarrow import parquet\nparquet.read_table('a')",
        "from pyarrow.parquet import read_table as r\nr('a')",
        "import pyarrow as pa\npa.ipc.open_file('a')",
        "import pyarrow as q\nwith q.ipc.open_stream(s) as t: pass",
        "from pyarrow import dataset as d\nd.dataset('a')",
        "def f():\n    import pyarrow.dataset as pads\n    pads.FileSystemDataset.from_paths([])",
        "from pyarrow import feather\nfeather.read_table('a')",
        "import lance\nlance.dataset('a')",
        "from datasets import load_dataset\nload_dataset('a')",
        "table.to_pyarrow_dataset().head(1)",
    ],
)
def test_reads_are_found_under_any_name(source: str) -> None:
    assert len(reads_in(source)) == 1


def test_no_module_reads_arrow_data_past_the_check() -> None:
    root = Path(batchinference.__file__).parent
    result = {
        str(file.relative_to(root)): reads
        for file in root.rglob("*.py")
        if (reads := reads_in(file.read_text()))
    }
    assert {module: result[module] for module in result if module not in CHECKED} == {}
    assert CHECKED.keys() - result.keys() == set(), "these read nothing any more"


def test_variables_that_let_arrow_files_run_code_are_removed(messages: Messages) -> None:
    name = "RAY_DATA_AUTOLOAD_PICKLE_OBJECT_SCALAR"
    environment = {name: "1", "RAY_ADDRESS": "auto"}
    with messages.raises(RuntimeError):
        remove_autoload(environment, {"ray.data"})
    remove_autoload(environment, {"ray"})
    assert environment == {"RAY_ADDRESS": "auto"}


def test_worker_with_these_variables_is_refused(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setenv("RAY_DATA_AUTOLOAD_PYEXTENSIONTYPE", "1")
    with messages.raises(RuntimeError):
        importlib.reload(pipeline)


def test_command_removes_these_variables_before_ray_reads_them() -> None:
    name = "RAY_DATA_AUTOLOAD_CLOUDPICKLE_TENSOR_METADATA"
    program = (
        "from batchinference.cli.installed_packages import pipeline_is_installed\n"
        "assert pipeline_is_installed()\n"
        "from ray.data._internal.tensor_extensions import arrow\n"
        "assert arrow._AUTOLOAD_CLOUDPICKLE_TENSOR_METADATA is False"
    )
    environment = {**os.environ, name: "1"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


class FileWithThreads(io.FileIO):
    """A file that records which threads read it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.threads: set[int] = set()

    def read(self, size: int | None = -1, /) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(size)


def test_files_of_python_are_read_by_the_calling_thread(tmp_path: Path) -> None:
    """Another thread would free its last buffer later: while the interpreter exits, that aborts."""
    table = pa.table({name: range(10_000) for name in "abc"})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2_000)
    file = FileWithThreads(tmp_path / "a.parquet")
    with pa.PythonFile(file, mode="r") as source:
        assert read_table(source) == table
    assert file.threads == {threading.get_ident()}
