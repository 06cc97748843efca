"""Writes Parquet files with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.arrow import tensors_to_lists

_LISTS = ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list))


class ParquetWriter:
    def __init__(self, compression: str) -> None:
        self._compression = compression

    def files(self, table: pa.Table) -> Iterator[tuple[str, memoryview]]:
        sink = pa.BufferOutputStream()
        pq.write_table(without_halves(tensors_to_lists(table)), sink, compression=self._compression)
        yield ".parquet", memoryview(sink.getvalue())


def without_halves(table: pa.Table) -> pa.Table:
    """Return the table with float16 as float32, because some readers, such as Spark, do not support
    float16."""
    for index, field in enumerate(table.schema):
        if (kind := _widened(field.type)) != field.type:
            wide = table.column(index).cast(kind)
            table = table.set_column(index, field.with_type(kind), wide)
    return table


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_widened(field.type)) for field in kind])
    for is_kind, made in _LISTS:
        if is_kind(kind):
            return made(kind.value_field.with_type(_widened(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_widened(kind.value_type)), kind.list_size)
    return kind
