"""Builds columns from the results of a step, and finds the rows whose values do not fit.

A conversion to NumPy or Python and back may lose digits, nulls, time zones and types. So a returned
column of user code takes the values that were given to it from the input column of the same name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import (
    NO_VALUES,
    concat,
    decoded,
    to_column,
    with_column,
    with_nulls,
)
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.steps import TransformResult
from batchinference.pipeline.type_widening import exact_cast, is_tensor, nested_types, unify_types
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.text import with_article

Values = Sequence[Any] | np.ndarray
Misfits = dict[int, Exception]
"""The error of each row that does not fit, by row index."""
_NOT_ROWS = (str, bytes, bytearray, memoryview, Mapping, Set)
"""Values that have a length, but are one value. A text would be divided into its letters."""
_NO_COLUMN = (TypeError, ValueError)
"""The errors of `to_column`. It raises ValueError if tensors are mixed with other values."""


@dataclass(frozen=True)
class _Column:
    """The values that fit, in row order, and the errors of the rows that do not."""

    values: pa.Array | pa.ChunkedArray
    misfits: Misfits = field(default_factory=dict)

    def without(self, misfits: Misfits) -> pa.Array | pa.ChunkedArray:
        """Return the values without the rows in `misfits`, which include the misfits of this
        column."""
        if len(misfits) == len(self.misfits):
            return self.values
        count = len(self.values) + len(self.misfits)
        keep = [row not in misfits for row in range(count) if row not in self.misfits]
        return self.values.filter(pa.array(keep, pa.bool_()))


class ResultColumns:
    """Builds the result columns of successive batches.

    The first batch sets the type of a column: the type that most of its rows have. The type is
    widened if a later value needs it, for example from integer to float. A row does not fit if its
    value has another type, a type that Arrow does not know, or a value that the type would change.
    """

    def __init__(self, step: str) -> None:
        self._step = step
        self._types: dict[str, pa.DataType] = {}

    @contextmanager
    def unlearned(self) -> Iterator[None]:
        """Forget the types of the batches that are built while the block runs."""
        types = dict(self._types)
        try:
            yield
        finally:
            self._types = types

    def of(
        self, values: Mapping[str, Any], given: Mapping[str, GivenColumn] | None = None
    ) -> tuple[dict[str, pa.Array | pa.ChunkedArray], Misfits]:
        """Return the columns and the errors of the rows that do not fit. Rows that do not fit into
        one of the columns are removed from all columns. If no row is left, there are no columns,
        because their types are unknown. Values that were `given` to the code are not converted.
        Raises JobFailure if values have no rows."""
        columns = {
            name: self._column(name, column_values, (given or {}).get(name))
            for name, column_values in values.items()
        }
        misfits: Misfits = {}
        for column in columns.values():
            misfits = column.misfits | misfits
        left = {name: column.without(misfits) for name, column in columns.items()}
        return {} if misfits and not any(map(len, left.values())) else left, misfits

    def added(
        self,
        batch: pa.Table,
        values: Mapping[str, Any],
        failed: Mapping[int, Exception],
        skipped: Collection[int] = (),
    ) -> pa.Table | TransformResult:
        """Return the batch with additional columns. `values` has one entry per column for each row
        that is not in `failed` or `skipped`. The columns are null in the rows in `skipped`."""
        computed = [
            row for row in range(batch.num_rows) if row not in failed and row not in skipped
        ]
        columns, misfits = self.of(values) if computed else ({}, {})
        if not failed and not misfits and not skipped:
            return _with_columns(batch, columns)
        fit = [row for at, row in enumerate(computed) if at not in misfits]
        left = np.array(sorted([*fit, *skipped]), dtype=np.int64)
        errors = {**failed, **{computed[at]: error for at, error in misfits.items()}}
        if len(left) == 0:
            return TransformResult(pa.table({}), left, errors)  # no rows, so no types
        if skipped:
            computed_rows = np.searchsorted(left, fit)
            nulls = {name: pa.nulls(0, self._types.get(name, pa.null())) for name in values}
            columns = {
                name: with_nulls(columns.get(name, none), computed_rows, len(left))
                for name, none in nulls.items()
            }
        return TransformResult(_with_columns(batch.take(left), columns), left, errors)

    def _column(self, name: str, values: Any, given: GivenColumn | None) -> _Column:
        check_has_rows(self._step, name, values)
        kept: Mapping[int, pa.ChunkedArray] = {}
        if given is not None and _has_rows(values):
            values, kept = given.restored(values)
        if kept:
            return self._row_by_row(name, values, kept)
        try:
            column = to_column(values)
        except _NO_COLUMN as error:
            if not _has_rows(values):
                raise no_column(self._step, name, values, error) from error
            return self._row_by_row(name, values, {})
        kind = _wider(self._types.get(name, pa.null()), column.type)
        cast = None if kind is None else _cast(column, kind)
        if cast is None:
            return self._row_by_row(name, values, {})
        self._types[name] = kind
        return _Column(cast)

    def _row_by_row(self, name: str, values: Any, kept: Mapping[int, pa.ChunkedArray]) -> _Column:
        """Return the column of the rows that fit. `kept` holds rows that are not converted."""
        single: dict[int, pa.Array | pa.ChunkedArray] = {}
        misfits: Misfits = {}
        for row in range(len(values)):
            try:
                single[row] = kept[row] if row in kept else to_column(values[row : row + 1])
            except _NO_COLUMN:
                misfits[row] = TypeError(f"column '{name}': {_unsupported_value(values[row])}")
        kind = self._types.get(name) or _most_common(column.type for column in single.values())
        for row, column in list(single.items()):
            wider = _wider(kind, column.type)
            if wider is None:
                message = f"column '{name}' is {kind}, and this row has {single.pop(row).type}"
                misfits[row] = TypeError(message)
            kind = wider or kind
        self._types[name] = kind
        casts = {row: _cast(column, kind) for row, column in single.items()}
        fit = {row: column for row, column in casts.items() if column is not None}
        for row in casts.keys() - fit:
            message = f"column '{name}' is {kind}, which cannot hold {values[row]!r:.99}"
            misfits[row] = ValueError(message)
        return _Column(_concatenated(values, fit, kind), misfits)


def _with_columns(batch: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    for name, values in columns.items():
        batch = with_column(batch, name, values)
    return batch


def check_reserved(step: str, column: object) -> None:
    """Raise JobFailure if a step returned a column with a reserved name."""
    if str(column).startswith(OWN_PREFIX):
        raise JobFailure(
            f"step '{step}' returned a column '{column}': names that begin with {OWN_PREFIX} are "
            "reserved"
        )


def check_has_rows(step: str, column: str, values: Any) -> None:
    """Raise JobFailure if a column is one value that has a length."""
    if isinstance(values, _NOT_ROWS):
        raise _one_value(step, column, values)


def _one_value(step: str, column: str, value: Any) -> JobFailure:
    return JobFailure(
        f"step '{step}' returned a value of type {type(value).__name__} in column '{column}'. "
        "Return a list with one value for each row, such as [value] * number_of_rows"
    )


def no_column(step: str, column: str, values: Any, error: Exception) -> JobFailure:
    """Return the error about values that are not a column. `error` says why."""
    try:
        len(values)
    except TypeError:
        return _one_value(step, column, values)
    return JobFailure(
        f"step '{step}' returned {with_article(type(values).__name__)} in column '{column}' that "
        f"is not a column: {error}. Return a list with one value for each row"
    )


def _has_rows(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.ndim > 0
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)


def _unsupported_value(value: Any) -> str:
    """Return a message that says why Arrow does not accept a value."""
    message = f"a value of type {type(value).__name__} that Arrow cannot hold"
    try:
        pa.array([value])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return f"{message}: {error}"
    return message


def _most_common(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """Return the most common type except null; the first one if several are equally common."""
    counts = Counter(kind for kind in kinds if not pa.types.is_null(kind))
    return max(counts, key=lambda kind: counts[kind], default=pa.null())


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type of values of both types; None if there is none, or if texts became bytes."""
    wider = unify_types(one, other)
    if wider is None or _texts(wider) < max(_texts(one), _texts(other)):
        return None
    return wider


def _texts(kind: pa.DataType) -> int:
    return sum(map(pa.types.is_string, nested_types(kind)))


def _cast(
    column: pa.Array | pa.ChunkedArray, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray | None:
    """Return a column in a wider type; None if the type does not hold all values."""
    if column.type == kind or isinstance(kind, pa.BaseExtensionType):
        return column
    try:
        return exact_cast(column, kind)
    except pa.ArrowInvalid:
        return None


def _concatenated(
    values: Any, single: Mapping[int, pa.Array | pa.ChunkedArray], kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Return one column of the rows that fit. `single` holds each of these rows as a column."""
    if not isinstance(kind, pa.BaseExtensionType):
        return pa.chunked_array(chain.from_iterable(map(chunks_of, single.values())), kind)
    try:
        return to_column([values[row] for row in single])
    except _NO_COLUMN:  # None mixed with tensors, which only concat supports
        return concat([pa.table({"column": column}) for column in single.values()]).column(0)


class GivenColumn:
    """A column of the input, and its values as the user's code gets them from `read`."""

    def __init__(self, column: pa.ChunkedArray, read: Callable[[pa.ChunkedArray], Values]) -> None:
        self._column, self._read = column, read

    def restored(
        self, values: Values
    ) -> tuple[Values | pa.ChunkedArray, dict[int, pa.ChunkedArray]]:
        """Return the column that was returned, with the type of the input column. If that type does
        not hold all values, return the values, and the rows with the value that was given."""
        given = self._read(self._column)
        if _is_plain(values) and (not _is_plain(given) or _kind(values) != _kind(given)):
            return values, {}
        same = _same(values, given)
        column = self._with_changes(values, np.flatnonzero(~same))
        if column is not None:
            return column, {}
        if _is_plain(values):
            return values, {}  # a NumPy type holds all of its values
        rows = [row for row in np.flatnonzero(same).tolist() if values[row] is not None]
        return values, {row: decoded(self._column.slice(row, 1)) for row in rows}

    def _with_changes(self, values: Values, rows: np.ndarray) -> pa.ChunkedArray | None:
        """Return the input column with other values in these rows. Return None if its type does not
        hold them: the code would not get the same values from the column."""
        if not len(rows):
            return self._column
        column = decoded(self._column)
        changed = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        nan_is_null = _is_plain(values) and not pa.types.is_floating(column.type)
        try:
            made = pa.array(changed, column.type, from_pandas=nan_is_null)
        except NO_VALUES:
            return None
        order = np.arange(len(column))
        order[rows] = len(column) + np.arange(len(rows))
        both = pa.chunked_array([*column.chunks, *chunks_of(made)], column.type)
        result = both.take(pa.array(order))
        return result if self._are_read(values, result) else None

    def _are_read(self, values: Values, column: pa.ChunkedArray) -> bool:
        found = self._read(column)
        if _is_plain(values) and _is_plain(found):
            found = found.astype(values.dtype)  # integers without nulls are no floats
        return bool(_same(values, found).all())


def given_columns(
    table: pa.Table, read: Callable[[pa.ChunkedArray], Values]
) -> dict[str, GivenColumn]:
    """Return the columns of a table except tensors, which NumPy does not change."""
    return {
        field.name: GivenColumn(table.column(field.name), read)
        for field in table.schema
        if not is_tensor(field.type)
    }


def chunks_of(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """Return the parts of a column."""
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _is_plain(values: Any) -> TypeGuard[np.ndarray]:
    """Return whether these are numbers or times of NumPy, without Python objects."""
    return isinstance(values, np.ndarray) and values.dtype != object


def _kind(values: np.ndarray) -> tuple[np.dtype, int]:
    return values.dtype, values.ndim


def _same(one: Values, other: Values) -> np.ndarray:
    """Return a mask of the rows with the same value: numbers with the same bits, so that NaN is the
    same as NaN, and 0 is not -0."""
    if not (_is_plain(one) and _is_plain(other)):
        return np.array(list(map(_is_same, one, other)), dtype=bool)
    size = (len(one), one.dtype.itemsize)
    bits = (np.ascontiguousarray(array).view(np.uint8).reshape(size) for array in (one, other))
    return np.asarray(np.equal(*bits).all(axis=1))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and content, at any depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and one.dtype == object == other.dtype:
        return one.shape == other.shape and all(map(_is_same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        kinds = [(array.dtype, array.shape, array.tobytes()) for array in (one, other)]
        return kinds[0] == kinds[1]
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)
