"""Hashes rows. Equal rows have the same hash, and different rows do not.

Rows are equal if they have the same column names and types in the same order, and values with the
same bits. So 0 differs from -0, 1 from 1.0, and null from an empty text. The way in which Arrow
stores the rows does not matter: chunks, slices, dictionaries, 64-bit offsets, lists of fixed size.
The length of each value is hashed before the value, so (`ab`, `c`) differs from (`a`, `bc`)."""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from batchinference.pipeline.arrow import decoded, values_of
from batchinference.pipeline.type_widening import is_list, is_tensor, map_types, plain_column

HASH_BYTES = 32
_NAMES = {"large_string": "string", "large_binary": "binary"}
"""The common name of types that Arrow stores in several ways."""


def row_hashes(table: pa.Table) -> list[bytes]:
    """Return the hash of each row of a table, with HASH_BYTES bytes."""
    columns = {name: plain_column(decoded(table.column(name))) for name in table.column_names}
    names = [(name, _name_of(column.type)) for name, column in columns.items()]
    head = hashlib.blake2b(json.dumps(names).encode(), digest_size=HASH_BYTES)
    hashes = []
    exact = map(_exact, columns.values())
    for row in zip(*map(values_of, exact), strict=True):
        row_hash = head.copy()
        row_hash.update(_joined(row))
        hashes.append(row_hash.digest())
    return hashes


def _exact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with `time64[ns]` as integers, because `datetime.time` has no nanoseconds."""
    kind = map_types(column.type, lambda kind: pa.int64() if kind == pa.time64("ns") else kind)
    return column if kind == column.type else column.cast(kind)


def _name_of(kind: pa.DataType) -> str:
    """Return the name of a type, regardless of how Arrow stores its values."""
    if is_tensor(kind):
        return "tensor"
    if kinds.is_dictionary(kind):
        return _name_of(kind.value_type)
    if kinds.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_name_of(field.type)}' for field in kind)}>"
    if kinds.is_map(kind):
        return f"map<{_name_of(kind.key_type)}, {_name_of(kind.item_type)}>"
    if is_list(kind):
        return f"list<item: {_name_of(kind.value_type)}>"
    return _NAMES.get(str(kind), str(kind))


def _joined(values: Iterable[Any]) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in map(_bytes, values))


def _bytes(value: Any) -> bytes:
    """Return a value as bytes that are unique among the values of its Arrow type."""
    match value:
        case None:
            return b""
        case str():
            return b"s" + value.encode()
        case bytes():
            return b"b" + value
        case float():
            return b"f" + struct.pack("<d", value)
        case np.ndarray():
            return b"a" + _joined([value.dtype.str, str(value.shape), value.tobytes()])
        case dict():
            return b"d" + _joined([*value, *value.values()])
        case [float(), *_] if set(map(type, value)) == {float}:
            return b"n" + array("d", value).tobytes()
        case list() | tuple():
            return b"l" + _joined(value)
    return b"r" + repr(value).encode()
