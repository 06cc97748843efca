"""Reads untrusted Arrow and Parquet data.

Ray registers an Arrow extension type whose values are pickles. Converting such a column to Python
objects runs code of the author of the file. So all reads of Arrow and Parquet data go through this
module or call `refuse_pickles`, which rejects such columns. A test finds other reads."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.arrow import empty_table
from batchinference.pipeline.type_widening import EXTENSION_NAME

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location

PICKLED = "ray.data.arrow_pickled_object"
"""The name of this extension type. Ray may not have registered the type in this process."""
CHUNK_ROWS, CHUNK_BYTES = 16384, 64 << 20
"""Maximum rows and bytes of a decoded table. A damaged footer may have a wrong number of bytes."""

Typed = TypeVar("Typed", pa.Schema, pa.Table)


class UnsafeColumn(pa.ArrowInvalid):  # type: ignore[misc]
    """A column holds pickled Python objects."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"column '{name}' holds pickled Python objects ({PICKLED}), which run code when they "
            "are read. Store it as a plain Arrow type"
        )


def refuse_pickles(data: Typed) -> Typed:
    """Return a table or schema unchanged. Raises UnsafeColumn if it has pickles, at any depth."""
    schema = data.schema if isinstance(data, pa.Table) else data
    for field in schema:
        if _is_pickled(field):
            raise UnsafeColumn(field.name)
    return data


def _is_pickled(field: pa.Field) -> bool:
    metadata = field.metadata or {}
    return metadata.get(EXTENSION_NAME) == PICKLED.encode() or _holds_pickles(field.type)


def _holds_pickles(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name == PICKLED or _holds_pickles(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _holds_pickles(kind.value_type)  # not among the fields of `kind`
    return any(_is_pickled(kind.field(number)) for number in range(kind.num_fields))


def read_table(source: pa.NativeFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file, or only some columns. Raises as `read_tables` does."""
    return pa.concat_tables(read_tables(source, columns))


def read_tables(source: pa.NativeFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield an empty table, and then the rows of a Parquet file in tables of limited size.

    Raises UnsafeColumn, and ArrowInvalid for a damaged file and for missing or repeated columns."""
    with _parquet_file(source) as opened:
        schema = opened.schema_arrow
        wanted = list(columns or schema.names)
        if wrong := [name for name in wanted if schema.names.count(name) != 1]:
            raise pa.ArrowInvalid(f"there is no column '{wrong[0]}', or more than one")
        refuse_pickles(pa.schema([field for field in schema if field.name in wanted]))
        check_footer(opened.metadata)
        yield empty_table(schema).select(wanted)
        for group in range(opened.num_row_groups):
            for table in row_group_tables(opened, group, wanted):
                yield table.select(wanted)


def tables_in(file: Location, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of the Parquet file at a location, like `read_tables`."""
    with file.open_input_file() as source:
        yield from read_tables(source, columns)


def table_in(file: Location, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of the Parquet file at a location, like `read_table`."""
    return pa.concat_tables(tables_in(file, columns))


def batches_in(file: Location, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, at most `rows` at a time. Raises UnsafeColumn."""
    with file.open_input_file() as source:
        yield from open_parquet(source).iter_batches(rows)


def row_group_tables(
    opened: pq.ParquetFile, group: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a row group. Only one thread decodes, because a task has one CPU."""
    footer = opened.metadata.row_group(group)  # not `.column(n)`, which crashes for damaged files
    rows = footer.num_rows * CHUNK_BYTES // max(1, footer.total_byte_size)
    size = min(max(1, rows), CHUNK_ROWS)
    for batch in opened.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
        yield pa.table(batch)


def check_footer(footer: pq.FileMetaData) -> None:
    """Raise ArrowInvalid if the numbers of rows of the file and of its row groups do not match."""
    groups = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != footer.num_rows:
        raise pa.ArrowInvalid("its footer claims other numbers of rows than its row groups")


def open_parquet(source: Any) -> pq.ParquetFile:
    """Open a Parquet file and return it. Raises UnsafeColumn."""
    opened = _parquet_file(source)
    refuse_pickles(opened.schema_arrow)
    return opened


def _parquet_file(source: Any) -> pq.ParquetFile:
    """Open a Parquet file and return it. Threads of Arrow must not read a Python file. They free
    its buffers late, and the process aborts if the interpreter is exiting by then. Content in
    memory needs no threads."""
    without_threads = not isinstance(source, pa.NativeFile) or isinstance(
        source, pa.PythonFile | pa.BufferReader
    )
    return pq.ParquetFile(source, pre_buffer=not without_threads)


def parquet_metadata(source: Any) -> pq.FileMetaData:
    """Return the footer of a Parquet file. This is safe, because a footer has no rows."""
    return pq.read_metadata(source)


def parquet_footer(file: Location, size: int) -> pq.FileMetaData:
    """Return the footer of a Parquet file of `size` bytes with one request to the object store."""
    import pyarrow.dataset as pads  # slow; worker processes do not need it

    # only a fragment can be opened without a request for the size
    parquet = pads.ParquetFileFormat()
    return parquet.make_fragment(file.path, file.filesystem, file_size=size).metadata


def schema_of(content: bytes) -> pa.Schema:
    """Return the Arrow schema in serialized bytes. Raises UnsafeColumn."""
    return refuse_pickles(pa.ipc.read_schema(pa.py_buffer(content)))


def schema_text(schema: pa.Schema) -> str:
    """Return an Arrow schema as text, without its metadata."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def schema_in(text: str) -> pa.Schema:
    """Return the Arrow schema in a text. Raises ValueError for other texts, and UnsafeColumn."""
    return schema_of(base64.b64decode(text))


def read_stream(content: bytes) -> pa.Table:
    """Return the rows of an Arrow IPC stream. Raises UnsafeColumn."""
    with pa.ipc.open_stream(content) as stream:
        refuse_pickles(stream.schema)
        return stream.read_all()
