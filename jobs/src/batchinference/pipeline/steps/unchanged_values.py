"""Copies the values that user code returns, and recognizes input values that it returns unchanged.

A conversion to NumPy or Python and back may lose digits, nulls, time zones and types. So a value
that equals the input value in the column of the same name is replaced by that input value."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import NO_VALUES, decoded
from batchinference.pipeline.runtimes.device import to_numpy
from batchinference.pipeline.type_widening import is_tensor

Values = Sequence[Any] | np.ndarray
_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes, np.str_, np.bytes_})


class InputColumn:
    """A column of the input of user code. `read` converts a column to the values that code gets."""

    def __init__(self, column: pa.ChunkedArray, read: Callable[[pa.ChunkedArray], Values]) -> None:
        self._column, self._read = column, read

    def restored(
        self, values: Values
    ) -> tuple[Values | pa.ChunkedArray, dict[int, pa.ChunkedArray]]:
        """Return `values`, and the input values that are equal to them: by row, as columns of one
        row. Input values that no conversion changes are left out. If all values fit the type of the
        input column, return a column of this type, and no rows."""
        inputs = self._read(self._column)
        if np.ma.is_masked(values):
            return values, {}
        if _is_plain(values) and (
            not _is_plain(inputs) or (values.dtype, values.ndim) != (inputs.dtype, inputs.ndim)
        ):
            return values, {}
        unchanged = _equal(values, inputs)
        column = self._with_changes(values, np.flatnonzero(~unchanged))
        if column is not None:
            return column, {}
        if _is_plain(values):
            return values, {}  # a conversion loses nothing, because all values have one type
        rows = [row for row in np.flatnonzero(unchanged).tolist() if values[row] is not None]
        return values, {row: decoded(self._column.slice(row, 1)) for row in rows}

    def _with_changes(self, values: Values, rows: np.ndarray) -> pa.ChunkedArray | None:
        """Return the input column with the returned values in these rows. Return None if a reader
        of the column would get other values, because the type of the column does not fit them."""
        if not len(rows):
            return self._column
        column = decoded(self._column)
        new = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        nan_is_null = _is_plain(values) and not pa.types.is_floating(column.type)
        try:
            array = pa.array(new, column.type, from_pandas=nan_is_null)
        except NO_VALUES:
            return None
        order = np.arange(len(column))
        order[rows] = len(column) + np.arange(len(rows))
        both = pa.chunked_array([*column.chunks, *chunks_of(array)], column.type)
        result = both.take(pa.array(order))
        return result if self._holds(result, values) else None

    def _holds(self, column: pa.ChunkedArray, values: Values) -> bool:
        result = self._read(column)
        if _is_plain(values) and _is_plain(result):
            # integers are read as floats only if some are null
            result = result.astype(values.dtype)
        return bool(_equal(values, result).all())


def input_columns(
    table: pa.Table, read: Callable[[pa.ChunkedArray], Values]
) -> dict[str, InputColumn]:
    """Return the columns of a table by name, without tensors: NumPy does not change tensors."""
    return {
        field.name: InputColumn(table.column(field.name), read)
        for field in table.schema
        if not is_tensor(field.type)
    }


def chunks_of(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """Return the arrays of a column."""
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _is_plain(values: Any) -> TypeGuard[np.ndarray]:
    """Return whether the values are a NumPy array of numbers or times, not of Python objects."""
    return isinstance(values, np.ndarray) and values.dtype != object


def _equal(one: Values, other: Values) -> np.ndarray:
    """Return a mask (bool) of the rows with equal values. Numbers are compared by their bits, so
    that NaN equals NaN, and 0.0 does not equal -0.0."""
    if not (_is_plain(one) and _is_plain(other)):
        return np.array(list(map(_is_equal, one, other)), dtype=bool)
    size = (len(one), one.dtype.itemsize)
    bits = (np.ascontiguousarray(array).view(np.uint8).reshape(size) for array in (one, other))
    return np.asarray(np.equal(*bits).all(axis=1))


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and content, at any depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and one.dtype == object == other.dtype:
        return one.shape == other.shape and all(map(_is_equal, one, other))
    if isinstance(one, np.ndarray | np.generic):
        kinds = [(array.dtype, array.shape, array.tobytes()) for array in (one, other)]
        return kinds[0] == kinds[1]
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


def copied(values: Any) -> Any:
    """Return a copy of values that user code may change in its next call, such as a reused array.
    Values in lists, dicts and object arrays are copied, too."""
    if isinstance(values, np.ndarray):
        return _copied_array(values)
    if isinstance(values, list):
        return _copied_items(values)
    if isinstance(values, pa.MonthDayNano):  # a tuple that Arrow would turn into a list
        return values
    if isinstance(values, tuple):  # stays a tuple, because the keys of a map are in tuples
        return tuple(_copied_items(values))
    if isinstance(values, dict):
        return dict(zip(values, _copied_items(values.values()), strict=True))
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _copied_arrow(values)
    if isinstance(values, memoryview):
        return bytes(values)
    if hasattr(values, "detach"):  # a tensor of torch
        return to_numpy(values)[()]
    is_series = hasattr(values, "iloc")  # of pandas
    return values.copy() if is_series or isinstance(values, bytearray) else values


def _copied_items(values: Iterable[Any]) -> list[Any]:
    items = list(values)
    if _IMMUTABLE.issuperset(map(type, items)):  # much faster than a call for each item
        return items
    return [copied(item) for item in items]


def _copied_array(values: np.ndarray) -> np.ndarray:
    result = copy(values)
    if values.dtype == object and values.ndim:
        items = np.asarray(result)  # a view, as a subclass might convert items
        for index, item in zip(np.ndindex(items.shape), _copied_items(items.flat), strict=True):
            items[index] = item
    return result


def _copied_arrow(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a copy of Arrow data, because the data may share memory with a NumPy array."""
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array(map(_copied_arrow, values.chunks), values.type)
    return pa.concat_arrays([values, values[:0]])  # a single array would not be copied
