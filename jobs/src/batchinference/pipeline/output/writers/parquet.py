"""Writes and reads Parquet files with pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchinference.json_text import to_json
from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.python_rows import Row, rows_of_table
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.storage.arrow_files import read_table, tables_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import cast_column, is_list, map_types, nested_types

_NOT_IN_PARQUET = (
    *(pa.types.is_union, pa.types.is_interval, pa.types.is_run_end_encoded),
    lambda kind: pa.types.is_decimal(kind) and kind.scale < 0,
)
"""Functions that return whether Parquet lacks a type."""


@dataclass(frozen=True)
class ParquetWriter(RewritingWriter):
    compression: str
    names_of_lists: bool = False
    """Whether files keep Arrow's names of list elements. If not, the name is `element`."""
    row_group_bytes: int = 64 << 20
    """A row group ends after this number of bytes in memory."""
    typed = True

    def converted(self, table: pa.Table) -> pa.Table:
        return storable(tensors_to_lists(table))

    def files(self, table: pa.Table) -> Iterator[tuple[str, memoryview]]:
        yield ".parquet", self.write([self.converted(table)])

    def rows(self, part: Location) -> Iterator[Row]:
        for table in tables_in(part):
            yield from rows_of_table(table)

    def read(self, content: bytes) -> pa.Table:
        return read_table(pa.BufferReader(content)).replace_schema_metadata()

    def write(self, tables: Iterable[pa.Table]) -> memoryview:
        sink = pa.BufferOutputStream()
        writer: pq.ParquetWriter | None = None
        with ExitStack() as opened:
            for group in _row_groups(tables, self.row_group_bytes):
                if writer is None:
                    writer = pq.ParquetWriter(
                        sink,
                        group.schema,
                        compression=self.compression,
                        use_compliant_nested_type=not self.names_of_lists,
                    )
                    opened.enter_context(writer)
                writer.write_table(group)
        return memoryview(sink.getvalue())


def _row_groups(tables: Iterable[pa.Table], max_bytes: int) -> Iterator[pa.Table]:
    group: list[pa.Table] = []
    size = 0
    for table in tables:
        group.append(table)
        size += table.nbytes
        if size >= max_bytes:
            yield pa.concat_tables(group)
            group, size = [], 0
    if group:
        yield pa.concat_tables(group)


def storable(table: pa.Table, name: str = "Parquet") -> pa.Table:
    """Return the table with types that Parquet and Spark support. float16 becomes float32, and
    structs without fields become the text `{}`. Raises BadOutput as `check_stored_types` does."""
    check_stored_types(table.schema, name)
    table = without_empty_structs(table)
    for index, field in enumerate(table.schema):
        wide = map_types(field.type, lambda k: pa.float32() if pa.types.is_float16(k) else k)
        if wide != field.type:
            table = table.set_column(
                index, field.with_type(wide), cast_column(table.column(index), wide)
            )
    return table


def check_stored_types(schema: pa.Schema, name: str) -> None:
    """Raise BadOutput for a column whose type Parquet lacks. Tasks write Parquet files for all
    tables. The message says that the format `name` lacks the type."""
    for field in schema:
        if any(is_one(kind) for kind in nested_types(field.type) for is_one in _NOT_IN_PARQUET):
            raise missing_type(field, name)


def without_empty_structs(table: pa.Table) -> pa.Table:
    """Return the table with the text `{}` in place of structs without fields."""
    for index, field in enumerate(table.schema):
        if _has_empty_struct(field.type):
            chunks = [_as_texts(chunk) for chunk in table.column(index).chunks]
            kind = chunks[0].type if chunks else pa.string()
            table = table.set_column(index, field.name, pa.chunked_array(chunks, kind))
    return table


def missing_type(field: pa.Field, name: str) -> BadOutput:
    """Return the error for a column whose type the format `name` lacks."""
    return BadOutput(
        f"write: column '{field.name}' has a type that {name} does not have ({field.type}). Make "
        "it text in a step, or leave it out of write.columns"
    )


def _has_empty_struct(kind: pa.DataType) -> bool:
    empty = pa.types.is_struct(kind) and not kind.num_fields
    return empty or any(_has_empty_struct(kind.field(at).type) for at in range(kind.num_fields))


def _as_texts(array: pa.Array) -> pa.Array:
    """Return an array with the text `{}` in place of structs without fields. Maps that contain such
    structs become JSON texts."""
    kind, nulls = array.type, array.is_null()
    if not _has_empty_struct(kind):
        return array
    if pa.types.is_struct(kind) and kind.num_fields:
        children = [_as_texts(array.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, [field.name for field in kind], mask=nulls)
    if is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        elements = _as_texts(array.flatten())
        return pa.ListArray.from_arrays(offsets, elements, mask=nulls)
    if pa.types.is_struct(kind):
        return pc.if_else(nulls, None, "{}")
    texts = [None if value is None else to_json(value) for value in array.to_pylist()]
    return pa.array(texts, pa.string())
