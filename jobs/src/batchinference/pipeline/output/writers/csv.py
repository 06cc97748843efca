"""Writes files of delimiter-separated values with pyarrow. Nested values and bytes become JSON."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as pac

from batchinference.pipeline.arrow import tensors_to_lists, with_known_zones
from batchinference.pipeline.output.writers.json import to_json


class CsvWriter:
    def __init__(self, compression: str, delimiter: str) -> None:
        self._gzip = compression == "gzip"
        self._delimiter = delimiter

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        sink = pa.BufferOutputStream()
        options = pac.WriteOptions(delimiter=self._delimiter)
        pac.write_csv(_flat(with_known_zones(tensors_to_lists(table))), sink, options)
        content = sink.getvalue().to_pybytes()
        if self._gzip:
            yield ".csv.gz", gzip.compress(content, mtime=0)
        else:
            yield ".csv", content


def _flat(table: pa.Table) -> pa.Table:
    """Return the table with lists, structs and bytes as JSON text."""
    for index, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            values = table.column(index).to_pylist()
            texts = [None if value is None else to_json(value) for value in values]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table
