"""Reads TFRecord files of tf.train.Example records without TensorFlow.

A record consists of its length, the masked CRC-32C of the length, the content, and the masked
CRC-32C of the content. Columns are inferred from the first records of a few files and apply to all
files.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import google_crc32c
import pyarrow as pa
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers import MAX_COLUMNS, BadRow, Chunk, Reader, inspected
from batchinference.pipeline.input.readers.records import (
    beginning,
    estimate,
    opened,
    unpacked,
    up_to_damage,
)
from batchinference.pipeline.input.signatures import is_tfrecords
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import TfrecordsOptions

SAMPLE_RECORDS = 100
CHUNK_RECORDS, CHUNK_BYTES = 1024, 8 << 20
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_DAMAGED_LENGTH = "the length of a record is damaged: its checksum is another"
_PACKINGS = {
    **dict.fromkeys((b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), "ZLIB"),
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""The beginnings of files with other compressions than gzip."""
_DAMAGE = (ValueError, EOFError, zlib.error, MemoryError)
Record: TypeAlias = bytes | Exception
Values: TypeAlias = Sequence[bytes] | Sequence[float] | Sequence[int]
_SCHEMA = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE type_name: ".tensorflow.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL
            type: TYPE_MESSAGE type_name: ".tensorflow.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: ".tensorflow.Features" }
  field { name: "feature_lists" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES } }
"""
"""The definitions in tensorflow/core/example/{example,feature}.proto. `feature_lists` is the second
field of a SequenceExample, which has the same first field."""
VALUE_BYTES = 8
"""Bytes of a number in memory. In a record, a number may take only one byte."""
_TYPES = {"bytes_list": pa.large_binary(), "float_list": pa.float32(), "int64_list": pa.int64()}


class TfrecordsReader(Reader):
    recognizes = staticmethod(is_tfrecords)

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
            names = ", ".join(self._columns)
            raise BadInput(
                f"read.options.listColumns: there is no feature '{missing[0]}', only {names}"
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
                    yield features_of(_content(record), self._most)

    def _tables(self, records: Iterator[Record], columns: dict[str, Column]) -> Iterator[Chunk]:
        rows: list[dict[str, Any]] = []
        size = 0
        for record in records:
            try:
                content = _content(record)
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
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    return pa.Table.from_pylist(rows, schema)


def _size(record: Record) -> int:
    return len(record) if isinstance(record, bytes) else 0


def _content(record: Record) -> bytes:
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
    begun = False
    while header := source.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise ValueError("the file ends within a record")
        length, checksum = _HEADER.unpack(header)
        if _masked_crc(header[:8]) != checksum:
            raise ValueError(_DAMAGED_LENGTH if begun else _problem_of(header))
        begun = True
        if length > most:
            _skip(source, length + _CRC.size)
            yield ValueError(f"the record has {length} bytes, more than maxRowBytes ({most})")
            continue
        content, footer = source.read(length), source.read(_CRC.size)
        if len(footer) < _CRC.size:
            raise ValueError("the file ends within a record")
        valid = _masked_crc(content) == _CRC.unpack(footer)[0]
        yield content if valid else ValueError("the record is damaged: its checksum is another")


def _problem_of(header: bytes) -> str:
    """Return why a file does not begin with the header of a record."""
    packings = (name for mark, name in _PACKINGS.items() if header.startswith(mark))
    if packing := next(packings, None):
        return f"the file is compressed with {packing}. Decompress it, or compress it with gzip"
    return _DAMAGED_LENGTH


def _skip(source: BinaryIO, size: int) -> None:
    while size:
        passed = len(source.read(min(size, CHUNK_BYTES)))
        if not passed:
            raise ValueError("the file ends within a record")
        size -= passed


def _masked_crc(content: bytes) -> int:
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _message() -> type[Any]:
    pool = descriptor_pool.DescriptorPool()  # not the default: TensorFlow may be loaded too
    pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
    found = pool.FindMessageTypeByName("tensorflow.Example")
    return cast(type[Any], message_factory.GetMessageClass(found))


Example = _message()


@dataclass(frozen=True)
class Feature:
    """The kind and the values of one feature of a record."""

    kind: str
    values: Values


@dataclass(frozen=True)
class Column:
    """The column of a feature: its values are single values or lists."""

    kind: str
    is_list: bool = True

    @property
    def type(self) -> pa.DataType:
        single = _TYPES[self.kind]
        return pa.list_(single) if self.is_list else single

    def value(self, name: str, feature: Feature) -> Any:
        """Return the column's value for a feature. Raises ValueError if it does not fit."""
        if feature.kind != self.kind and feature.values:
            raise ValueError(f"feature '{name}' is a {feature.kind}, and others a {self.kind}")
        if self.is_list:
            return feature.values
        if len(feature.values) != 1:
            raise ValueError(
                f"feature '{name}' has {len(feature.values)} values, and the first records had one "
                "each: name it in read.options.listColumns"
            )
        return feature.values[0]


def features_of(record: bytes, most: int) -> dict[str, Feature]:
    """Return the features of a serialized Example that have a kind. Raises ValueError if `record`
    is not an Example, or if its values take more than `most` bytes."""
    try:
        example = Example.FromString(record)
    except DecodeError as error:
        raise ValueError(f"the record is no tf.train.Example: {error}") from error
    if example.feature_lists or (record and not example.HasField("features")):
        raise ValueError("the record is a SequenceExample or another message, no tf.train.Example")
    features = {}
    values = example.features.feature  # a protobuf map has no fixed order
    for name in sorted(values):
        feature = values[name]
        if kind := feature.WhichOneof("kind"):
            found = getattr(feature, kind).value
            most -= len(found) * VALUE_BYTES
            if most < 0:
                raise ValueError(f"feature '{name}' has {len(found)} values, which take more bytes "
                                 "than maxRowBytes")  # fmt: skip
            features[name] = Feature(kind, list(found))
    return features


def columns_of(records: Iterable[Mapping[str, Feature]], lists: Sequence[str]) -> dict[str, Column]:
    """Return the columns for these records. A column holds lists if a record has no value or
    several values, or if `lists` names it. Its kind is that of the first values."""
    columns: dict[str, Column] = {}
    filled: set[str] = set()
    for features in records:
        if len(columns.keys() | features.keys()) > MAX_COLUMNS:
            continue  # the record becomes a failed row when it is read
        for name, feature in features.items():
            known = columns.get(name, Column(feature.kind, name in lists))
            kind = known.kind if name in filled else feature.kind
            columns[name] = Column(kind, known.is_list or len(feature.values) != 1)
            filled.update([name] if feature.values else ())
    return dict(sorted(columns.items()))
