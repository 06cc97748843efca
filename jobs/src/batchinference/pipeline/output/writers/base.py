"""What a writer is, and plain columns instead of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from ray.data.extensions import get_arrow_extension_tensor_types

from batchinference.pipeline.arrow import in_place
from batchinference.pipeline.errors import BadOutput

MAX_BYTES = (1 << 31) - 1
"""Bytes of tensors that become one list array, which counts its elements in 32 bits."""


class Writer(Protocol):
    """From rows to the files of one format. It travels into the write tasks."""

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """The files that hold a table: how the name of each ends, and all of its bytes."""


def plain(table: pa.Table) -> pa.Table:
    """The table with tensors as (nested) lists, which every other tool can read."""
    tensors = get_arrow_extension_tensor_types()
    for index, field in enumerate(table.schema):
        if isinstance(field.type, tensors):
            parts = (part for chunk in table.column(index).chunks for part in _parts(chunk))
            lists = pa.chunked_array([_lists(part) for part in parts], _list_type(field.type))
            table = table.set_column(index, field.name, lists)
    return table


@contextmanager
def naming(column: str) -> Iterator[None]:
    """Let an error of a value name its column."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise BadOutput(f"write: a value of column '{column}': {error}") from error


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as Python has them, tensors as NumPy arrays. Null is None."""
    if not isinstance(column.type, get_arrow_extension_tensor_types()):
        return list(column.to_pylist())
    found: list[Any] = []
    for chunk in column.chunks:
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        there = iter(_values(chunk.filter(pa.array(valid))) if valid.any() else ())
        found += [next(there) if known else None for known in valid]
    return found


def _parts(tensors: pa.ExtensionArray) -> Iterator[pa.ExtensionArray]:
    if tensors.nbytes <= MAX_BYTES or len(tensors) == 1:
        yield tensors
        return
    half = len(tensors) // 2
    yield from _parts(tensors.slice(0, half))
    yield from _parts(tensors.slice(half))


def _list_type(tensor: pa.ExtensionType) -> pa.DataType:
    kind = _value_type(tensor)
    for _ in range(_dimensions(tensor)):
        kind = pa.list_(kind)
    return kind


def _value_type(tensor: pa.ExtensionType) -> pa.DataType:
    kind = tensor.value_type
    return pa.string() if pa.types.is_fixed_size_binary(kind) else kind  # NumPy's text


def _dimensions(tensor: pa.ExtensionType) -> int:
    return len(tensor.shape) if hasattr(tensor, "shape") else tensor.ndim


def _lists(tensors: pa.ExtensionArray) -> pa.Array:
    """rows x shape as lists of lists, one level a dimension. A row without a tensor is null."""
    valid = tensors.is_valid().to_numpy(zero_copy_only=False)
    if not valid.any():
        return pa.nulls(len(tensors), _list_type(tensors.type))
    if not valid.all():
        places = pa.array(np.cumsum(valid) - 1, mask=~valid)
        return _lists(tensors.filter(pa.array(valid))).take(places)
    values = _values(tensors)
    shapes = np.array([value.shape for value in values])
    if values.dtype == object:  # rows of different shapes
        values = np.concatenate([value.reshape(-1) for value in values])
    return _nested(pa.array(values.reshape(-1), _value_type(tensors.type)), shapes)


def _values(tensors: pa.ExtensionArray) -> np.ndarray:
    tensors = in_place(tensors)
    native = isinstance(tensors, pa.FixedShapeTensorArray)  # whose to_numpy forgets the shape
    values: np.ndarray = (
        tensors.to_numpy_ndarray() if native else tensors.to_numpy(zero_copy_only=False)
    )
    return values


def _nested(array: pa.Array, shapes: np.ndarray) -> pa.Array:
    """The elements of all rows as lists of lists; `shapes` is rows x dimensions."""
    for axis in reversed(range(shapes.shape[1])):
        lengths = np.repeat(shapes[:, axis], shapes[:, :axis].prod(axis=1))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array)
    return array
