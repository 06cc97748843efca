"""Converts between Arrow, NumPy and Python, and finds values that only Arrow can represent.

Ray, whose version pyproject.toml pins, converts tensors. It is imported on first use, because
commands that read an output do not need it.

Files can hold values that Python cannot represent, such as invalid UTF-8 or dates after the year
9999. Arrow accepts such values, but a conversion to Python raises an exception. A row with such a
value therefore fails as soon as it is read, or a step creates the value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.ray_on_first_use import ray_data_compat
from batchinference.pipeline.type_widening import (
    FIXED_SHAPE,
    TypeMismatch,
    is_list,
    is_tensor,
    is_text,
    nested_types,
    plain_column,
    plain_type,
    with_equal_types,
)

Batch = dict[str, np.ndarray]
"""NumPy arrays by column name, with one element per row, like a batch of `map_batches`."""

MAX_LIST_BYTES = (1 << 31) - 1
"""Maximum bytes of the tensors that become one list array, because list offsets have 32 bits."""
NO_VALUES = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""The exceptions that Arrow raises for values that do not fit a type."""
_NUMBERS = "?" + np.typecodes["AllInteger"] + "efd"
"""The NumPy types of numbers that Arrow knows."""
_PLAIN: dict[frozenset[type], pa.DataType] = {
    frozenset(): pa.null(),
    frozenset({str}): pa.string(),
    frozenset({bytes}): pa.binary(),
    frozenset({bool}): pa.bool_(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
}
"""Ray's types for values of one Python type or null. These conversions need no import of Ray."""
_BYTES_AT_ONCE = 1 << 20
"""Approximate bytes of the rows that are Python objects at the same time."""
_CONVERTED = (kinds.is_temporal, kinds.is_binary, kinds.is_string, kinds.is_decimal, kinds.is_null)
"""Tests for types, other than numbers, to which Arrow may convert values of several other types."""


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables as one table. Missing columns become null, and types are
    widened. Raises JobFailure if no type can hold all values of a column."""
    inputs = joinable(tables)
    if inputs is tables:
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    if not any(isinstance(kind, pa.BaseExtensionType) for t in inputs for kind in t.schema.types):
        return pa.concat_tables(inputs, promote_options="default")
    joined = ray_data_compat().concat(inputs, promote_types=True, preserve_order=True)
    return joined.select([*dict.fromkeys(name for table in tables for name in table.column_names)])


def joinable(tables: Sequence[pa.Table]) -> Sequence[pa.Table]:
    """Return tables like `with_equal_types`. Raises JobFailure if no type holds all values."""
    try:
        equal = with_equal_types(tables)
        return tables if equal is tables else _with_equal_tensors([*equal])
    except TypeMismatch as error:
        raise JobFailure(
            f"column '{error.column}' is {error.one} in some rows and {error.other} in others, and "
            "no type holds both. Give it one type in the step that makes it, or in a step after "
            "the read"
        ) from error


def _with_equal_tensors(tables: list[pa.Table]) -> list[pa.Table]:
    """Return tables with tensors that Ray can join. Ray cannot join Arrow's tensors with its own.
    If Ray changed the type of tensors with a fixed shape, nulls would get values of other rows."""
    for name in {field.name for t in tables for field in t.schema if is_tensor(field.type)}:
        columns = {at: t.column(name) for at, t in enumerate(tables) if name in t.column_names}
        types = {column.type for column in columns.values()}
        has_nulls = any(column.null_count for column in columns.values())
        if len(types) == 1 or not (has_nulls or pa.FixedShapeTensorType in map(type, types)):
            continue
        rest = to_column([*chain.from_iterable(map(values_of, columns.values()))])
        for at, column in columns.items():
            tables[at] = with_column(tables[at], name, rest[: len(column)])
            rest = rest[len(column) :]
    return tables


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows. Arrow's own method fails for lists of UUIDs, and for tensors
    with permuted axes."""
    return pa.Table.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def to_batch(table: pa.Table) -> Batch:
    """Return a table as NumPy arrays, like the batches that Ray Data passes in `map_batches`."""
    return {name: to_numpy(table.column(name)) for name in table.column_names}


def to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as in a batch: an array with the rows as its first axis. Integers with nulls
    become float64, and tensors with nulls become objects."""
    column = decoded(column)
    kind, chunks = column.type, column.chunks
    if kinds.is_null(kind):
        return np.full(len(column), np.nan, dtype=np.float32)
    if not isinstance(kind, pa.BaseExtensionType):
        with suppress(pa.ArrowNotImplementedError):  # raised for unions and lists of UUIDs
            values = chunks[0] if len(chunks) == 1 else column
            return np.asarray(values.to_numpy(zero_copy_only=False))
    elif not is_tensor(kind) or not column.null_count:  # Ray Data cannot convert null tensors
        chunks = map(at_assumed_offsets, chunks) if is_tensor(kind) else chunks
        table = pa.table({"column": pa.chunked_array(chunks, kind)})
        return np.asarray(ray_data_compat().BlockAccessor.for_block(table).to_numpy("column"))
    return np.fromiter(values_of(column), object, len(column))


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the values of a column as one array. A column with one chunk is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary-encoded column as plain values, and any other column unchanged. In NumPy,
    a null in a dictionary-encoded column would become another value."""
    return column.cast(column.type.value_type) if kinds.is_dictionary(column.type) else column


def at_assumed_offsets(tensors: pa.ExtensionArray) -> pa.ExtensionArray:
    """Return the tensors, as a copy if their offsets are not those that Ray assumes. Ray assumes
    that each earlier row has a tensor in memory. Null rows have none, so Ray would read the tensors
    after a null row at the wrong offset."""
    if not len(tensors) or tensors.type.extension_name not in FIXED_SHAPE:
        return tensors
    storage = tensors.storage
    if storage.offsets[0].as_py() == storage.offset * math.prod(tensors.type.shape):
        return tensors
    return tensors.type.wrap_array(storage.take(pa.array(np.arange(len(tensors)))))


def to_table(columns: Mapping[str, Any]) -> pa.Table:
    """Return arrays as a table. Arrays with several dimensions become tensors."""
    return ray_data_compat().BlockAccessor.batch_to_arrow_block(dict(columns))


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as Ray Data passes them to functions of `map`."""
    at_once = max(1, _BYTES_AT_ONCE * table.num_rows // max(1, table.nbytes))
    for start in range(0, table.num_rows, at_once):
        stop = min(start + at_once, table.num_rows)  # a slice without columns has another length
        columns = {n: values_of(table.column(n)[start:stop]) for n in table.column_names}
        for index in range(stop - start):
            yield {name: values[index] for name, values in columns.items()}


def to_column(values: Any) -> pa.ChunkedArray:
    """Return values as a column. Data that is already in Arrow keeps its values. Ray would change
    NumPy texts and bytes, and Python times, so these are converted without Ray.

    Raises TypeError for objects that Ray Data could only pickle, and if the common type would
    change a value, such as a datetime among dates. Also raises it for masked values in several
    dimensions or inside of a value."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return plain_column(pa.chunked_array(getattr(values, "chunks", [values]), values.type))
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "SU":
            return _texts(values)
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if values.ndim == 1 and values.dtype.char in _NUMBERS:
            return pa.chunked_array([pa.array(values)])
    if np.ma.is_masked(values):
        values = _masked_items(values)
    if not isinstance(values, list | tuple) and getattr(values, "dtype", None) != np.dtype(object):
        return _by_ray(values)
    kind = _PLAIN.get(frozenset(map(type, values)) - {NoneType})
    if kind is not None:
        with suppress(*NO_VALUES):
            return pa.chunked_array([pa.array(values, kind)])
    values = _with_alike_arrays(values)
    rows = [row for row, value in enumerate(values) if value is not None]
    first = values[rows[0]] if rows else None
    if len(rows) < len(values) and isinstance(first, np.ndarray) and first.dtype.kind not in "SUO":
        tensors = to_column([values[row] for row in rows])  # Ray would make lists, or fail
        return with_nulls(tensors, np.array(rows), len(values))
    has_texts = any(isinstance(v, np.ndarray) and v.dtype.kind in "SU" for v in values)
    by_arrow = has_texts or isinstance(first, date | timedelta)
    column = pa.chunked_array([_by_arrow(values)]) if by_arrow else _by_ray(values)
    return unchanged(column, values)


def _masked_items(array: np.ma.MaskedArray) -> list[Any]:
    """Return the items of a masked array. Raises TypeError if it has several dimensions."""
    if array.ndim > 1:
        raise TypeError("only arrays of one dimension may have masked values")
    return list(array)


def _with_alike_arrays(values: Sequence[Any]) -> list[Any]:
    """Return values with arrays in the byte order of this machine. Arrays without dimensions become
    numbers, and `np.ma.masked` becomes None. If all arrays with values have one type, empty arrays
    get this type."""
    arrays = (value for value in values if isinstance(value, np.ndarray) and value.size)
    dtypes = {array.dtype.newbyteorder("=") for array in arrays}
    common = dtypes.pop() if len(dtypes) == 1 else None

    def alike(array: np.ndarray) -> Any:
        if array is np.ma.masked:
            return None
        dtype = common or array.dtype.newbyteorder("=")
        dtype = np.dtype("M8[s]") if dtype == "M8[D]" else dtype  # Ray would read days as ms
        return array.astype(dtype, copy=False)[()]

    return [alike(value) if isinstance(value, np.ndarray) else value for value in values]


def unchanged(column: pa.ChunkedArray, values: Sequence[Any]) -> pa.ChunkedArray:
    """Return a column that was made of `values`. Raises TypeError if a value has changed."""
    if _may_change(column.type, values):
        for read, value in zip(values_of(column), values, strict=True):
            if not is_unchanged(read, value):
                raise TypeError(f"{value!r:.99} would become {read!r:.99}")
    return column


def _by_ray(values: Any) -> pa.ChunkedArray:
    """Return values with the type that Ray gives them."""
    column = to_table({"column": values}).column(0)
    if not isinstance(column.type, ray_data_compat().ArrowPythonObjectType):
        return column
    if any(isinstance(value, np.ndarray) and value.dtype.kind in "biufc" for value in values):
        raise TypeError("its values have no type in common that Arrow knows")
    return pa.chunked_array([_by_arrow(values)])  # Ray has no tensors of texts or objects


def _by_arrow(values: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
    known = [None if isinstance(v, datetime) and v != v else v for v in values]  # noqa: PLR0124 NaT
    plain = [
        value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "SUO" else value
        for value in known
    ]
    try:
        column = pa.array(plain, from_pandas=True)
        # nanoseconds of pandas times, which Arrow would cut by default
        if any(getattr(v, "nanosecond", 0) or getattr(v, "nanoseconds", 0) for v in plain):
            zone = getattr(column.type, "tz", None)
            kind = pa.duration("ns") if kinds.is_duration(column.type) else pa.timestamp("ns", zone)
            return pa.array(plain, kind, from_pandas=True)
    except NO_VALUES as error:
        raise TypeError(f"its values have no type in common that Arrow knows: {error}") from error
    return column


def _texts(values: np.ndarray) -> pa.Array | pa.ChunkedArray:
    """Return NumPy texts or bytes as an Arrow array. Further dimensions become lists."""
    kind = pa.binary() if values.dtype.kind == "S" else pa.string()
    for _ in values.shape[1:]:
        kind = pa.list_(kind)
    return pa.array(values.tolist(), kind)  # Arrow cuts texts of a NumPy array at the first NUL


def _may_change(kind: pa.DataType, values: Sequence[Any]) -> bool:
    """Return whether a column of this type may have changed one of its original values."""
    types = frozenset(map(type, values)) - {NoneType}
    if types in _PLAIN:
        return False
    if any(issubclass(each, np.ma.MaskedArray) for each in types):
        return True  # Arrow and Ray ignore the masks of arrays inside of a value
    if types <= {list, tuple} and is_list(kind):
        return _may_change_items(kind.value_type, [value for value in values if value])
    if is_tensor(kind):
        arrays = [value for value in values if value is not None]
        forms = {(getattr(array, "dtype", None), np.ndim(array)) for array in arrays}
        return len(forms) > 1 and not _are_held_exactly(kind.value_type, arrays)
    parts = [*nested_types(kind)]
    if types == {np.ndarray} and _are_held_exactly(parts[-1], values):
        return False
    if all(issubclass(each, dict) for each in types) and kinds.is_struct(kind):
        rows = [value for value in values if value]
        return any(_may_change(part.type, [row.get(part.name) for row in rows]) for part in kind)
    suspect: tuple[Any, ...] = _CONVERTED
    if kind.num_fields or not all(map(_is_exact_number, types)):
        suspect += (kinds.is_integer, kinds.is_floating)
    return pa.uuid() in parts or any(is_kind(part) for part in parts for is_kind in suspect)


def _may_change_items(kind: pa.DataType, lists: Sequence[Any]) -> bool:
    """Return whether lists with items of this type may have changed one of their original items."""
    types = frozenset(map(type, chain.from_iterable(lists)))  # does not copy the items
    return types not in _PLAIN and _may_change(kind, [*chain.from_iterable(lists)])


def _is_exact_number(kind: type) -> bool:
    """Return whether Arrow keeps numbers of this Python or NumPy type unchanged, even among numbers
    of other such types. A float16 is not exact: among integers, Arrow cuts its fraction."""
    return kind is not bool and issubclass(kind, int | float | np.integer | np.float32)


def _are_held_exactly(kind: pa.DataType, values: Sequence[Any]) -> bool:
    """Return whether a type certainly holds all numbers in arrays (or None) with the same number of
    axes. Compares the types of the arrays, and not each number."""
    arrays = [value for value in values if value is not None]
    dtypes = {getattr(array, "dtype", None) for array in arrays}
    has_same_axes = len(set(map(np.ndim, arrays))) == 1
    return has_same_axes and all(_holds_exactly(kind, dtype) for dtype in dtypes)


def _holds_exactly(kind: pa.DataType, dtype: Any) -> bool:
    """Return whether a type certainly holds all numbers of arrays of a NumPy type."""
    if not isinstance(dtype, np.dtype) or not (kinds.is_integer(kind) or kinds.is_floating(kind)):
        return False
    target = np.dtype(kind.to_pandas_dtype())  # NumPy would cast int64 to float64, and round
    is_narrow = dtype.kind in "iuf" and dtype.itemsize < 8
    return dtype == target or (is_narrow and np.can_cast(dtype, target))


def is_unchanged(read: Any, value: Any) -> bool:
    """Return whether a value read from a column equals the stored value. Only numbers, texts,
    bytes, times and decimals are compared, also in lists, arrays and structs."""
    if np.ma.is_masked(value):
        return False
    if isinstance(read, np.ndarray) and read.dtype.kind in "biufmM":
        return _is_same_array(read, value)
    if isinstance(value, np.datetime64 | np.timedelta64) and not np.isnat(value):
        return bool(type(value)(getattr(read, "asm8", read)) == value)  # asm8 has the nanoseconds
    read = read.tolist() if isinstance(read, np.ndarray) else read
    is_plain = isinstance(value, np.ndarray) and value.dtype.kind not in "mM"
    value = value.tolist() if is_plain else value
    if isinstance(value, Mapping) and isinstance(read, dict):
        return all(is_unchanged(read.get(key), child) for key, child in value.items())
    if isinstance(value, list | tuple | np.ndarray) and isinstance(read, list):
        return len(read) == len(value) and all(map(is_unchanged, read, value))
    if isinstance(value, Decimal):
        return read is not None and bool(read == value)  # Arrow reads the decimal NaN as null
    if isinstance(value, str | bytes | date | time | timedelta):
        return read is None if value != value else bool(read == value)  # noqa: PLR0124 - NaT
    if isinstance(value, bool | np.bool_):
        return isinstance(read, bool)
    is_number = isinstance(value, int | float | np.number) or isinstance(read, int | float | UUID)
    return not is_number or bool(read == value or value != value)  # noqa: PLR0124 - NaN


def _is_same_array(read: np.ndarray, value: Any) -> bool:
    """Return whether an array of numbers, booleans or times has the values of `value`."""
    is_time = read.dtype.kind in "mM"
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufmM":
        return not is_time and is_unchanged(read.tolist(), value)
    if read.dtype.kind != value.dtype.kind and {read.dtype.kind, value.dtype.kind} & {*"bmM"}:
        return False  # numbers may have become times
    if is_time:  # perhaps with another unit
        return np.array_equal(read.astype(value.dtype), value, equal_nan=True)
    large = np.abs(read.astype(float)) >= 2**53  # NumPy rounds these integers to compare floats
    is_same = np.array_equal(read, value, equal_nan=True)
    return is_same and bool(read[large].tolist() == value[large].tolist())


def tensors_to_lists(table: pa.Table, max_bytes: int = MAX_LIST_BYTES) -> pa.Table:
    """Return the table with tensors as (nested) lists, which all tools can read. A chunk of lists
    has at most `max_bytes` of tensors, or a single tensor."""
    for index, field in enumerate(table.schema):
        if is_tensor(field.type):
            chunks = table.column(index).chunks
            parts = (part for chunk in chunks for part in _parts(chunk, max_bytes))
            lists = pa.chunked_array([_as_lists(part) for part in parts], _list_type(field.type))
            table = table.set_column(index, field.name, lists)
    return table


def _parts(tensors: pa.ExtensionArray, max_bytes: int) -> Iterator[pa.ExtensionArray]:
    if tensors.nbytes <= max_bytes or len(tensors) == 1:
        yield tensors
        return
    half = len(tensors) // 2
    yield from _parts(tensors.slice(0, half), max_bytes)
    yield from _parts(tensors.slice(half), max_bytes)


def _list_type(tensor: pa.ExtensionType) -> pa.DataType:
    kind = tensor.value_type
    kind = pa.string() if pa.types.is_fixed_size_binary(kind) else kind  # texts of NumPy
    for _ in range(len(tensor.shape) if hasattr(tensor, "shape") else tensor.ndim):
        kind = pa.list_(kind)
    return kind


def _as_lists(tensors: pa.ExtensionArray) -> pa.Array:
    """Return tensors as nested lists, one level for each dimension. Null stays null."""
    valid = tensors.is_valid().to_numpy(zero_copy_only=False)
    if not valid.any():
        return pa.nulls(len(tensors), _list_type(tensors.type))
    if not valid.all():
        indexes = pa.array(np.cumsum(valid) - 1, mask=~valid)
        return _as_lists(tensors.filter(pa.array(valid))).take(indexes)
    values = _values(tensors)
    shapes = np.array([value.shape for value in values])
    if values.dtype == object:  # rows of different shapes
        values = np.concatenate([value.reshape(-1) for value in values])
    values = values.reshape(-1)
    if values.dtype.kind == "U":  # see _texts
        return _nested(pa.array(values.tolist(), pa.string()), shapes)
    return _nested(pa.array(values, tensors.type.value_type), shapes)


def require_columns(step: str, columns: list[str], batch: pa.Table) -> None:
    """Raise JobFailure if a column that a step reads is missing, because every row would fail."""
    for column in columns:
        if column not in batch.column_names:
            names = ", ".join(batch.column_names)
            message = f"step '{step}' reads column '{column}', but the columns here are {names}"
            raise JobFailure(message)


def with_column(batch: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the table with this column, appended or instead of the column of the same name."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return batch.append_column(name, values)
    return batch.set_column(index, name, values)


def with_nulls(
    column: pa.Array | pa.ChunkedArray, rows: np.ndarray, count: int
) -> pa.Array | pa.ChunkedArray:
    """Return a column of `count` rows: the values of `column` at the indexes `rows` (int64,
    ascending), and null elsewhere."""
    if len(column) == 0:
        return pa.nulls(count, column.type)
    indexes = np.full(count, -1)
    indexes[rows] = np.arange(len(rows))
    return column.take(pa.array(indexes, mask=indexes < 0))


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python objects: tensors are NumPy arrays, and null is None. Unlike in a
    NumPy batch, nulls do not change the type of other values."""
    if not is_tensor(column.type):
        return list(column.to_pylist())
    values: list[Any] = []
    for chunk in column.chunks:
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        present = chunk if valid.all() else chunk.filter(pa.array(valid))  # a filter copies
        tensors = iter(_values(present) if valid.any() else ())
        values += [next(tensors) if is_valid else None for is_valid in valid]
    return values


def _values(tensors: pa.ExtensionArray) -> np.ndarray:
    tensors = at_assumed_offsets(tensors)
    if isinstance(tensors, pa.FixedShapeTensorArray):  # its to_numpy loses the shape
        return np.asarray(tensors.to_numpy_ndarray())
    return np.asarray(tensors.to_numpy(zero_copy_only=False))


def _nested(array: pa.Array, shapes: np.ndarray) -> pa.Array:
    """Return the flat elements of all rows as nested lists. `shapes` has the shape of each row."""
    for axis in reversed(range(shapes.shape[1])):
        lengths = np.repeat(shapes[:, axis], shapes[:, :axis].prod(axis=1))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array)
    return array


_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
"""0001-01-02 and 9999-12-30, in days since 1970: a time zone may shift a date by one day."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64 = 2**63 - 1
_OTHERS = (kinds.is_union, kinds.is_run_end_encoded, kinds.is_list_view, kinds.is_large_list_view)
"""Types whose arrays Arrow cannot check. Their values are converted one by one."""


def unreadable_rows(table: pa.Table) -> dict[int, Exception]:
    """Return an error for each row with a value that Python cannot represent, by row index."""
    errors: dict[int, Exception] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        start = 0
        for chunk in column.chunks:
            for index in [] if _is_readable(chunk) else range(len(chunk)):
                try:
                    chunk[index].as_py()
                except Exception as error:  # noqa: BLE001 - any error means an invalid value
                    problem = f"invalid as {field.type} ({type(error).__name__}: {error})"
                    message = f"column '{field.name}': its value is {problem}"
                    errors.setdefault(start + index, ValueError(message))
            start += len(chunk)
    return errors


def _is_readable(array: pa.Array) -> bool:
    """Return whether Python can certainly represent all values."""
    kind = array.type
    if is_tensor(kind) or (kinds.is_primitive(kind) and not kinds.is_temporal(kind)):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _is_readable(array.storage)
    if kinds.is_dictionary(kind):
        return _is_readable(array.dictionary)
    if is_text(plain_type(kind)):
        with suppress(pa.ArrowInvalid):
            array.validate(full=True)
            return True
        return False
    if kinds.is_struct(kind):
        unique = len({field.name for field in kind}) == kind.num_fields
        return unique and all(map(_is_readable, array.flatten()))
    if kinds.is_map(kind):
        return _is_readable(array.keys) and _is_readable(array.items)
    if is_list(kind):
        return _is_readable(array.flatten())
    special = kinds.is_temporal(kind) or any(is_kind(kind) for is_kind in _OTHERS)
    return not special or array.null_count == len(array) or _is_within(array, kind)


def _is_within(array: pa.Array, kind: pa.DataType) -> bool:
    """Return whether Python has all these dates or timestamps, in any time zone."""
    if kinds.is_date(kind):
        day = 1 if kinds.is_date32(kind) else _DAY * 1000
    elif kinds.is_timestamp(kind) and _has_known_zone(kind):
        day = _DAY * _PER_SECOND[kind.unit]
    else:
        return False
    import pyarrow.compute as pc  # here, to save memory in commands such as `status`

    extremes = pc.min_max(array.view(pa.int32() if kinds.is_date32(kind) else pa.int64())).as_py()
    limit = _INT64 - day  # pandas converts nanoseconds to int64
    first, last = max(_FIRST_DAY * day, -limit), min(_LAST_DAY * day, limit)
    return bool(first <= extremes["min"] and extremes["max"] <= last)


@lru_cache(maxsize=1024)
def _has_known_zone(kind: pa.TimestampType) -> bool:
    """Return whether Python knows the time zone of a timestamp."""
    with suppress(Exception):  # pytz and zoneinfo raise different errors
        return pa.scalar(0, kind).as_py() is not None
    return False
