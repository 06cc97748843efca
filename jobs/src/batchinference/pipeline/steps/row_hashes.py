"""Hashes rows, such that only equal rows have the same hash.

Rows are equal if their columns have the same names and types, and all values the same bits: 0 is
not -0, 1 is not 1.0, null is not an empty text, and a text is not its Unicode normalization. The
hash does not depend on how Arrow stores the values: in chunks, slices or dictionaries, or with
64-bit offsets. Each value is preceded by its length, so that values do not move between columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.schema import is_list, is_tensor

HASH_BYTES = 32
_NULL = b"\xff" * 8
"""The length of null."""
_NAMES = {
    **dict.fromkeys(("string", "large_string", "string_view"), "string"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), "binary"),
}
"""The names of types that Arrow stores in several ways."""


def row_hashes(table: pa.Table) -> list[bytes]:
    """Return the hash of each row of a table (HASH_BYTES)."""
    names = [(field.name, _name_of(field.type)) for field in table.schema]
    head = hashlib.blake2b(json.dumps(names).encode(), digest_size=HASH_BYTES)
    columns = [
        [value for chunk in column.chunks for value in _values(chunk)] for column in table.columns
    ]
    return [_hash(head, row) for row in zip(*columns, strict=True)]


def _hash(head: hashlib.blake2b, row: Iterable[bytes | None]) -> bytes:
    found = head.copy()
    found.update(_joined(row))
    return found.digest()


def _joined(values: Iterable[bytes | None]) -> bytes:
    """Return values in one, each with its length."""
    return b"".join(
        _NULL if value is None else len(value).to_bytes(8, "little") + value for value in values
    )


def _name_of(kind: pa.DataType) -> str:
    """Return the name of a type, without the way in which Arrow stores its values."""
    if is_tensor(kind):
        return "tensor"
    if isinstance(kind, pa.BaseExtensionType):
        return f"{json.dumps(kind.extension_name)}({_name_of(kind.storage_type)})"
    if kinds.is_dictionary(kind):
        return _name_of(kind.value_type)
    if is_list(kind):
        return f"list({_name_of(kind.value_type)})"
    if kinds.is_struct(kind):
        fields = (f"{json.dumps(field.name)}: {_name_of(field.type)}" for field in kind)
        return f"struct({', '.join(fields)})"
    return _NAMES.get(str(kind), str(kind))


def _values(array: pa.Array) -> Sequence[bytes | None]:
    """Return the value of each row as bytes; None for null. They are exact for one type."""
    kind = array.type
    if kinds.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if is_tensor(kind):
        return [_of_tensor(value) for value in values_of(pa.chunked_array([array]))]
    if isinstance(kind, pa.BaseExtensionType):
        return _values(array.storage)
    if _NAMES.get(str(kind)) is not None:
        return array.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]
    if is_list(kind):
        return _of_lists(array)
    if kinds.is_struct(kind):
        fields = zip(*map(_values, array.flatten()), strict=True) if kind.num_fields else ()
        rows = [_joined(row) for row in fields] or [b""] * len(array)
        return [row if valid else None for row, valid in zip(rows, _valid(array), strict=True)]
    if (bits := _bits(array)) is not None:
        return bits.to_pylist()  # type: ignore[no-any-return]
    # maps, unions and other rare types
    return [None if value is None else repr(value).encode() for value in array.to_pylist()]


def _valid(array: pa.Array) -> list[bool]:
    return array.is_valid().to_pylist()  # type: ignore[no-any-return]


def _bits(array: pa.Array) -> pa.Array | None:
    """Return numbers and times as bytes of a fixed size; None if the type has no fixed size."""
    if kinds.is_boolean(array.type):
        array = array.cast(pa.uint8())
    fixed = kinds.is_primitive(array.type) or kinds.is_decimal(array.type)
    if not (fixed or kinds.is_fixed_size_binary(array.type)):
        return None
    return array.view(pa.binary(array.type.byte_width))


def _of_tensor(value: np.ndarray | None) -> bytes | None:
    """Return a tensor as bytes, whether or not all tensors of its column have the same shape."""
    if value is None:
        return None
    return _joined([f"{value.dtype.str}{value.shape}".encode(), value.tobytes()])


def _of_lists(array: pa.Array) -> list[bytes | None]:
    """Return lists as bytes. The numbers of a list without nulls are not copied one by one."""
    items = array.flatten()  # without those of null lists
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64)
    places = zip((ends - lengths).tolist(), ends.tolist(), _valid(array), strict=True)
    bits = _bits(items)
    if bits is None:
        values = _values(items)
        return [_joined(values[start:end]) if valid else None for start, end, valid in places]
    size, nulls = bits.type.byte_width, np.append(0, np.cumsum(bits.is_null().to_numpy(False)))
    raw = memoryview(bits.buffers()[1] or b"")[bits.offset * size :]
    single = bits.to_pylist() if nulls[-1] else ()
    return [
        None
        if not valid
        else b"\1" + _joined(single[start:end])
        if nulls[end] > nulls[start]
        else b"\0" + raw[start * size : end * size]
        for start, end, valid in places
    ]
