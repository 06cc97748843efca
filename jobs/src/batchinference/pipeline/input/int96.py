"""Reads INT96 timestamps of Parquet files exactly.

INT96 is the timestamp of Hive, Impala and old versions of Spark: a day and its nanoseconds. No
Arrow type holds all of them. Nanoseconds reach from the year 1677 to 2262, and microseconds lack
three digits. pyarrow wraps around or drops the digits, so each column is read in both units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.schema import is_list
from batchinference.spec.reserved import OWN_PREFIX

Unit = Literal["us", "ns"]
OTHER_UNIT: dict[Unit, Unit] = {"us": "ns", "ns": "us"}
_MOST_MICROSECONDS = (2**63 - 1) // 1000
"""The largest number of microseconds that nanoseconds can hold."""


def schema_of(footer: pq.FileMetaData, unit: Unit) -> pa.Schema:
    """Return the schema of a file with this unit for INT96 timestamps. Gives no access to rows."""
    empty = pa.BufferReader(b"")
    return pq.ParquetFile(empty, metadata=footer, coerce_int96_timestamp_unit=unit).schema_arrow


def int96_columns(footer: pq.FileMetaData) -> list[int]:
    """Return the indexes of the columns with INT96 timestamps, also in lists and structs."""
    leaves = map(footer.schema.column, range(footer.num_columns))
    if all(leaf.physical_type != "INT96" for leaf in leaves):
        return []
    types = (schema_of(footer, unit).types for unit in OTHER_UNIT)
    return [index for index, (one, other) in enumerate(zip(*types, strict=True)) if one != other]


def with_other_unit(
    tables: Iterable[pa.Table], others: Iterator[pa.Table], names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield tables with these columns in their other unit added. `others` are the same rows in
    other tables."""
    left = next(others)
    for table in tables:
        while left.num_rows < table.num_rows:
            left = pa.concat_tables([left, next(others)])
        part, left = left.slice(0, table.num_rows), left.slice(table.num_rows)
        for name in names:
            table = table.append_column(f"{OWN_PREFIX}{name}", part.column(name))  # noqa: PLW2901
        yield table


def without_other_unit(table: pa.Table, names: Sequence[str], unit: Unit) -> pa.Table:
    """Return a table of `with_other_unit` without the added columns. Raises ValueError if a
    timestamp is not exact."""
    for name in names:
        columns = table.column(name), table.column(f"{OWN_PREFIX}{name}")
        one, other = (list(_timestamps(column.combine_chunks())) for column in columns)
        micros, nanos = (one, other) if unit == "us" else (other, one)
        for pair in zip(micros, nanos, strict=True):
            _check(name, unit, *map(_numbers, pair))
    return table.drop_columns([f"{OWN_PREFIX}{name}" for name in names])


def _check(name: str, unit: Unit, micros: np.ndarray, nanos: np.ndarray) -> None:
    if unit == "ns" and np.abs(micros).max(initial=0) > _MOST_MICROSECONDS:
        raise ValueError(
            f"column '{name}': an INT96 timestamp is outside of the years 1677 to 2262, which "
            "nanoseconds can hold. Set read.options.int96: us"
        )
    if unit == "us" and (nanos - micros * 1000).any():  # also if both wrap around
        raise ValueError(
            f"column '{name}': an INT96 timestamp has nanoseconds, and it is read as microseconds. "
            "Set read.options.int96: ns"
        )


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the timestamps in an array, also those in lists and structs."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        yield array
    elif pa.types.is_map(kind):
        yield from [*_timestamps(array.keys), *_timestamps(array.items)]
    elif is_list(kind):
        yield from _timestamps(array.flatten())
    elif pa.types.is_struct(kind):
        for inner in array.flatten():
            yield from _timestamps(inner)


def _numbers(timestamps: pa.Array) -> np.ndarray:
    numbers: np.ndarray = timestamps.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers
