"""Parquet files of some KiB that expand to several GiB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MIB = 1 << 20


def _dictionary(path: Path) -> None:
    """Write rows that all refer to one long value."""
    zeros = pa.array(np.zeros(3000, np.int32))
    values = pa.DictionaryArray.from_arrays(zeros, pa.array(["x" * MIB]))
    pq.write_table(pa.table({"a": values}), path, compression="zstd", store_schema=False)


def _shared_prefixes(path: Path) -> None:
    """Write values that repeat the whole previous value."""
    values = pa.array(["x" * MIB] * 300)
    table = pa.table({str(number): values for number in range(6)})
    encoding = dict.fromkeys(table.column_names, "DELTA_BYTE_ARRAY")
    options = {"use_dictionary": False, "column_encoding": encoding}
    pq.write_table(table, path, data_page_size=1 << 40, write_statistics=False, **options)


def _pages(path: Path) -> None:
    """Write a row of values that are compressed very well."""
    zeros = pa.array([bytes(100 * MIB)])
    table = pa.table({str(number): zeros for number in range(8)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def _levels(path: Path) -> None:
    """Write a row with lists of nulls, which are runs of equal levels."""
    count = 60 * MIB
    nulls = pa.ListArray.from_arrays([0, count], pa.nulls(count, pa.int64()))
    pq.write_table(pa.table({str(number): nulls for number in range(2)}), path)


BOMBS: dict[str, Callable[[Path], None]] = {
    "a dictionary": _dictionary,
    "shared prefixes": _shared_prefixes,
    "pages": _pages,
    "runs of levels": _levels,
}
"""Maps the part that expands to the function that writes the file."""
