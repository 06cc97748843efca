"""Reads TFRecord files of tf.train.Example records without TensorFlow.

A record consists of its length, the masked CRC-32C of the length, the content, and the masked
CRC-32C of the content. Columns are inferred from the first records of a few files and apply to all
files.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import google_crc32c
import pyarrow as pa

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers.base import MAX_COLUMNS, BadRow, Chunk
from batchinference.pipeline.input.readers.inspection import inspected
from batchinference.pipeline.input.readers.lines import packed_or_not
from batchinference.pipeline.input.readers.streams import (
    beginning,
    estimate,
    opened,
    unpacked,
    up_to_damage,
)
from batchinference.pipeline.input.readers.tf_example import (
    Column,
    Feature,
    columns_of,
    features_of,
)
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import TfrecordsOptions

SAMPLE_RECORDS = 100
CHUNK_RECORDS, CHUNK_BYTES = 1024, 8 << 20
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_DAMAGE = (ValueError, EOFError, zlib.error, MemoryError)
Record: TypeAlias = bytes | Exception


class TfrecordsReader:
    extensions = packed_or_not("tfrecords", "tfrecord")
    rows_exact = False

    def __init__(self, options: TfrecordsOptions) -> None:
        self._lists = options.list_columns or []
        self._most = options.row_bytes
        self._columns: dict[str, Column] = {}

    def prepare(self, samples: list[Location]) -> None:
        found = inspected(samples, lambda sample: list(self._first_features(sample)))
        records = (features for _, first in found for features in first)
        self._columns = columns_of(records, self._lists)
        missing = [name for name in self._lists if name not in self._columns]
        if self._columns and missing:
            there = ", ".join(self._columns)
            raise BadInput(
                f"read.options.list_columns: there is no feature '{missing[0]}', only {there}"
            )

    def read(self, file: Location) -> Iterator[Chunk]:
        with opened(file) as source:
            yield from self._tables(_records(source, self._most), dict(self._columns))

    def _first_features(self, file: Location) -> Iterator[dict[str, Feature]]:
        """Yield the features of each of the first records of a file that is not damaged."""
        with opened(file) as source:
            records = _records(source, self._most)
            for record in beginning(records, source, SAMPLE_RECORDS, _size):
                with suppress(ValueError):  # becomes a failed row when it is read
                    yield features_of(_sound(record), self._most)

    def _tables(self, records: Iterator[Record], columns: dict[str, Column]) -> Iterator[Chunk]:
        rows: list[dict[str, Any]] = []
        size = 0
        for record in records:
            try:
                content = _sound(record)
                rows.append(_row(features_of(content, self._most), columns))
            except ValueError as error:
                yield from [_table(rows, columns), BadRow(error)]
                rows, size = [], 0
                continue
            size += len(content)
            if len(rows) == CHUNK_RECORDS or size > CHUNK_BYTES:
                yield _table(rows, columns)
                rows, size = [], 0
        yield _table(rows, columns)

    def rows_in(self, file: Location, size: int) -> int | None:
        with opened(file) as source:
            return estimate(_records(source, self._most), source, size)

    def columns(self) -> list[str] | None:
        return list(self._columns) or None


def _row(features: dict[str, Feature], columns: dict[str, Column]) -> dict[str, Any]:
    """Return the values of a record by column. A feature that no sample had becomes a column of
    lists. Raises ValueError if there are too many features or a value does not fit its column."""
    new = features.keys() - columns.keys()
    if new and len(columns) + len(new) > MAX_COLUMNS:
        raise ValueError(f"the file has more than {MAX_COLUMNS} different features")
    for name, feature in features.items():
        columns.setdefault(name, Column(feature.kind))
    return {name: columns[name].value(name, feature) for name, feature in features.items()}


def _table(rows: list[dict[str, Any]], columns: dict[str, Column]) -> pa.Table:
    if not rows:
        return pa.table({})
    arrays = [
        pa.array([row.get(name) for row in rows], column.type) for name, column in columns.items()
    ]
    return pa.table(arrays, names=list(columns))


def _size(record: Record) -> int:
    return len(record) if isinstance(record, bytes) else 0


def _sound(record: Record) -> bytes:
    if isinstance(record, Exception):
        raise ValueError(str(record)) from record
    return record


def _records(source: io.BufferedReader, most: int) -> Iterator[Record]:
    """Yield the records of a file, with an error for each damaged record, and one error for the
    rest of the file if no further record can be found."""
    return up_to_damage(_split(unpacked(source), most), _DAMAGE)


def _split(source: BinaryIO, most: int) -> Iterator[Record]:
    """Yield the records of a stream, with a ValueError for each damaged or too long record. Raises
    ValueError if no further record can be found."""
    while header := source.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise ValueError("the file ends within a record")
        length, checksum = _HEADER.unpack(header)
        if _masked_crc(header[:8]) != checksum:
            raise ValueError("the length of a record is damaged: its checksum is another")
        if length > most:
            _skip(source, length + _CRC.size)
            yield ValueError(f"the record has {length} bytes, more than max_row_bytes ({most})")
            continue
        content, footer = source.read(length), source.read(_CRC.size)
        if len(footer) < _CRC.size:
            raise ValueError("the file ends within a record")
        sound = _masked_crc(content) == _CRC.unpack(footer)[0]
        yield content if sound else ValueError("the record is damaged: its checksum is another")


def _skip(source: BinaryIO, size: int) -> None:
    while size:
        passed = len(source.read(min(size, CHUNK_BYTES)))
        if not passed:
            raise ValueError("the file ends within a record")
        size -= passed


def _masked_crc(content: bytes) -> int:
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
