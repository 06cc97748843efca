"""Reads Arrow and Parquet data that others may have written.

Ray registers an Arrow extension type whose values are pickles. Converting such a column to Python
objects runs code of the file's author. Every read of Arrow or Parquet data goes through this
module, which rejects these columns. A test finds reads that bypass it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location

PICKLED = "ray.data.arrow_pickled_object"
"""The name of the extension type, whether or not Ray has registered it in this process."""
_EXTENSION_NAME = b"ARROW:extension:name"

Typed = TypeVar("Typed", pa.Schema, pa.Table)


class UnsafeColumn(pa.ArrowInvalid):  # type: ignore[misc]
    """A column holds pickled Python objects."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"column '{name}' holds pickled Python objects ({PICKLED}), which run code when they "
            "are read. Store it as a plain Arrow type"
        )


def checked(data: Typed) -> Typed:
    """Return a table or schema unchanged.

    Raises UnsafeColumn if a column holds pickles at any depth."""
    schema = data.schema if isinstance(data, pa.Table) else data
    for field in schema:
        if _is_pickled(field):
            raise UnsafeColumn(field.name)
    return data


def _is_pickled(field: pa.Field) -> bool:
    metadata = field.metadata or {}
    return metadata.get(_EXTENSION_NAME) == PICKLED.encode() or _holds_pickles(field.type)


def _holds_pickles(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name == PICKLED or _holds_pickles(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _holds_pickles(kind.value_type)  # num_fields is 0 or excludes the value type
    return any(_is_pickled(kind.field(number)) for number in range(kind.num_fields))


def read_table(source: Any, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file, optionally only some columns.

    Raises UnsafeColumn, and ArrowInvalid if a column is missing or exists twice."""
    with pq.ParquetFile(source) as opened:
        schema = opened.schema_arrow
        wanted = list(columns or schema.names)
        if wrong := [name for name in wanted if schema.names.count(name) != 1]:
            raise pa.ArrowInvalid(f"there is no column '{wrong[0]}', or more than one")
        checked(pa.schema([field for field in schema if field.name in wanted]))
        return opened.read(columns=wanted).select(wanted)


def open_parquet(source: Any) -> pq.ParquetFile:
    """Open a Parquet file for reading and return it. Raises UnsafeColumn."""
    opened = pq.ParquetFile(source)
    checked(opened.schema_arrow)
    return opened


def parquet_metadata(source: Any) -> pq.FileMetaData:
    """Return the footer of a Parquet file. It gives no access to rows."""
    return pq.read_metadata(source)


def parquet_footer(file: Location, size: int) -> pq.FileMetaData:
    """Return the footer of a Parquet file of `size` bytes with one request to the object store.

    It gives no access to rows."""
    import pyarrow.dataset as pads  # worker processes need not import it

    # only fragments can be opened without another request for the size
    parquet = pads.ParquetFileFormat()
    return parquet.make_fragment(file.path, file.filesystem, file_size=size).metadata


def parquet_schema(source: Any) -> pa.Schema:
    """Return the Arrow schema of a Parquet file. Raises UnsafeColumn."""
    return checked(pq.read_schema(source))


def schema_of(content: bytes) -> pa.Schema:
    """Return the Arrow schema in serialized bytes. Raises UnsafeColumn."""
    return checked(pa.ipc.read_schema(pa.py_buffer(content)))


def read_stream(content: bytes) -> pa.Table:
    """Return the rows of an Arrow IPC stream. Raises UnsafeColumn."""
    with pa.ipc.open_stream(content) as stream:
        checked(stream.schema)
        return stream.read_all()
