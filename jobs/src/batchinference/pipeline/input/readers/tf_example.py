"""Parses tf.train.Example messages and maps their features to columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import pyarrow as pa
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from batchinference.pipeline.input.readers.base import MAX_COLUMNS

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
          type: TYPE_MESSAGE type_name: ".tensorflow.Features" } }
"""
"""The definitions in tensorflow/core/example/{example,feature}.proto."""
VALUE_BYTES = 8
"""Bytes of a number in memory. In a record, a number may take only one byte."""
_TYPES = {"bytes_list": pa.large_binary(), "float_list": pa.float32(), "int64_list": pa.int64()}


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
        if len(feature.values) > 1:
            raise ValueError(
                f"feature '{name}' has {len(feature.values)} values, and the first records had one "
                "each: name it in read.options.list_columns"
            )
        return feature.values[0] if feature.values else None


def features_of(record: bytes, most: int) -> dict[str, Feature]:
    """Return the features of a serialized Example that have a kind. Raises ValueError if `record`
    is not an Example, or if its values take more than `most` bytes."""
    try:
        example = Example.FromString(record)
    except DecodeError as error:
        raise ValueError(f"the record is no tf.train.Example: {error}") from error
    features = {}
    values = example.features.feature  # a protobuf map has no fixed order
    for name in sorted(values):
        feature = values[name]
        if kind := feature.WhichOneof("kind"):
            found = getattr(feature, kind).value
            most -= len(found) * VALUE_BYTES
            if most < 0:
                raise ValueError(f"feature '{name}' has {len(found)} values, which take more bytes "
                                 "than max_row_bytes")  # fmt: skip
            features[name] = Feature(kind, list(found))
    return features


def columns_of(records: Iterable[Mapping[str, Feature]], lists: Sequence[str]) -> dict[str, Column]:
    """Return the columns for these records. A column holds lists if a record has several values, or
    if `lists` names it."""
    columns: dict[str, Column] = {}
    for features in records:
        if len(columns.keys() | features.keys()) > MAX_COLUMNS:
            continue  # the record becomes a failed row when it is read
        for name, feature in features.items():
            known = columns.get(name, Column(feature.kind, name in lists))
            columns[name] = Column(known.kind, known.is_list or len(feature.values) > 1)
    return dict(sorted(columns.items()))
