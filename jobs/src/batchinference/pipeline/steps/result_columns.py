"""Builds the columns of a step's results. A row fails if its value does not fit its column."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import (
    concat,
    tensors_to_lists,
    to_column,
    with_column,
    with_nulls,
)
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.steps.transform import TransformResult
from batchinference.pipeline.steps.unchanged_values import InputColumn, chunks_of
from batchinference.pipeline.type_widening import exact_cast, is_list, is_tensor, unify_types
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.text import with_article

Misfits = dict[int, Exception]
"""The errors of the rows whose values do not fit their columns, by row index."""
_NOT_ROWS = (str, bytes, bytearray, memoryview, Mapping, Set)
"""Types that have a length, but are one value. For example, a text is not a list of letters."""
_NO_COLUMN = (TypeError, ValueError, OverflowError)
"""The errors of `to_column`. It raises ValueError if tensors are mixed with other values."""


@dataclass(frozen=True)
class _Column:
    """The values of the rows that fit, in row order, and the errors of the other rows."""

    values: pa.Array | pa.ChunkedArray
    misfits: Misfits = field(default_factory=dict)

    def without(self, misfits: Misfits) -> pa.Array | pa.ChunkedArray:
        """Return the values without the rows in `misfits`: the misfits of all columns."""
        if len(misfits) == len(self.misfits):
            return self.values
        rows = range(len(self.values) + len(self.misfits))
        keep = [row not in misfits for row in rows if row not in self.misfits]
        return self.values.filter(pa.array(keep, pa.bool_()))


class ResultColumns:
    """Builds the result columns of successive batches.

    The first batch sets the type of a column: a type that suits all its values, or else their most
    frequent type. A later value may widen the type, for example from integer to float. A row fails
    if Arrow does not know its value's type, or if no type suits both the value and the column. A
    row also fails if the conversion would change its value:

        batches [1, "x", 2], [3, 4.5]   # "x" fails its row; then the type is double"""

    def __init__(self, step: str) -> None:
        self._step = step
        self._types: dict[str, pa.DataType] = {}

    @contextmanager
    def without_learning(self) -> Iterator[None]:
        """Restore the column types after the `with` body: its few rows may have unusual types."""
        types = dict(self._types)
        try:
            yield
        finally:
            self._types = types

    def fitting(
        self, values: Mapping[str, Any], inputs: Mapping[str, InputColumn] | None = None
    ) -> tuple[dict[str, pa.Array | pa.ChunkedArray], Misfits]:
        """Return the columns without the rows that do not fit, and the errors of these rows. Return
        no columns if no row fits. Values that equal the values in `inputs` are not converted.
        Raises JobFailure if user code has returned a column that is not one value per row."""
        columns = {
            name: self._column(name, column_values, (inputs or {}).get(name))
            for name, column_values in values.items()
        }
        misfits: Misfits = {}
        for column in columns.values():
            misfits = column.misfits | misfits
        fitting = {name: column.without(misfits) for name, column in columns.items()}
        return {} if misfits and not any(map(len, fitting.values())) else fitting, misfits

    def added(
        self,
        batch: pa.Table,
        values: Mapping[str, Any],
        failed: Mapping[int, Exception],
        skipped: Collection[int] = (),
    ) -> pa.Table | TransformResult:
        """Return the batch with more columns, which are null in the rows in `skipped`. Return a
        TransformResult without the failed rows if rows failed or were skipped. `values` has the
        values of each column for the rows that neither failed nor were skipped."""
        computed = [x for x in range(batch.num_rows) if x not in failed and x not in skipped]
        columns, misfits = self.fitting(values) if computed else ({}, {})
        if not failed and not misfits and not skipped:
            return _with_columns(batch, columns)
        fitting = [row for at, row in enumerate(computed) if at not in misfits]
        parents = np.array(sorted([*fitting, *skipped]), dtype=np.int64)
        errors = {**failed, **{computed[at]: error for at, error in misfits.items()}}
        if len(parents) == 0:
            return TransformResult(pa.table({}), parents, errors)  # no rows, so no columns
        if skipped:
            computed_rows = np.searchsorted(parents, fitting)
            empty = {name: pa.nulls(0, self._types.get(name, pa.null())) for name in values}
            columns = {
                name: with_nulls(columns.get(name, no_values), computed_rows, len(parents))
                for name, no_values in empty.items()
            }
        return TransformResult(_with_columns(batch.take(parents), columns), parents, errors)

    def _column(self, name: str, values: Any, input_column: InputColumn | None) -> _Column:
        check_is_column(self._step, name, values)
        same: Mapping[int, pa.ChunkedArray] = {}
        if input_column is not None and _is_sequence(values):
            values, same = input_column.restored(values)
        if same:
            return self._row_by_row(name, values, same)
        try:
            column = to_column(values)
        except _NO_COLUMN as error:
            if not _is_sequence(values):
                raise no_column_error(self._step, name, values, error) from error
            return self._row_by_row(name, values, {})
        known = self._types.get(name, pa.null())
        column = _as_lists_beside(known, column)
        kind = unify_types(known, column.type)
        cast = None if kind is None else _cast(column, kind)
        if cast is None:
            return self._row_by_row(name, values, {})
        self._types[name] = kind
        return _Column(cast)

    def _row_by_row(self, name: str, values: Any, same: Mapping[int, pa.ChunkedArray]) -> _Column:
        """Return the column, converted row by row. `same` has the unchanged input values by row:
        each of them is a column of one row."""
        columns: dict[int, pa.Array | pa.ChunkedArray] = {}
        misfits: Misfits = {}
        for row in range(len(values)):
            try:
                columns[row] = same[row] if row in same else to_column(values[row : row + 1])
            except _NO_COLUMN as error:
                problem = _unsupported_value(values[row], error)
                misfits[row] = TypeError(f"column '{name}': {problem}")
        kind = self._types.get(name) or _most_common(column.type for column in columns.values())
        columns = {row: _as_lists_beside(kind, column) for row, column in columns.items()}
        for row, column in list(columns.items()):
            wider = unify_types(kind, column.type)
            if wider is None:
                message = f"column '{name}' is {kind}, and this row has {columns.pop(row).type}"
                misfits[row] = TypeError(message)
            kind = wider or kind
        self._types[name] = kind
        casts = {row: _cast(column, kind) for row, column in columns.items()}
        fitting = {row: column for row, column in casts.items() if column is not None}
        for row in casts.keys() - fitting:
            message = f"column '{name}' is {kind}, which cannot hold {values[row]!r:.99}"
            misfits[row] = ValueError(message)
        return _Column(_concatenated(fitting.values(), kind), misfits)


def _with_columns(batch: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    for name, values in columns.items():
        batch = with_column(batch, name, values)
    return batch


def check_reserved(step: str, column: object) -> None:
    """Raise JobFailure if the name of a column that a step has returned is reserved."""
    if str(column).startswith(OWN_PREFIX):
        raise JobFailure(
            f"step '{step}' returned a column '{column}': names that begin with {OWN_PREFIX} are "
            "reserved"
        )


def check_is_column(step: str, column: str, values: Any) -> None:
    """Raise JobFailure if a column is a single value that has a length, such as a text."""
    if isinstance(values, _NOT_ROWS):
        raise _one_value_error(step, column, values)


def _one_value_error(step: str, column: str, value: Any) -> JobFailure:
    return JobFailure(
        f"step '{step}' returned a value of type {type(value).__name__} in column '{column}'. "
        "Return a list with one value for each row, such as [value] * number_of_rows"
    )


def no_column_error(step: str, column: str, values: Any, error: Exception) -> JobFailure:
    """Return the failure for values that cannot become a column because of `error`."""
    try:
        len(values)
    except TypeError:
        return _one_value_error(step, column, values)
    return JobFailure(
        f"step '{step}' returned {with_article(type(values).__name__)} for column '{column}', "
        f"which cannot be used as a column: {error}. Return a list with one value for each row"
    )


def _is_sequence(values: Any) -> bool:
    return values.ndim > 0 if isinstance(values, np.ndarray) else isinstance(values, Sequence)


def _unsupported_value(value: Any, cause: Exception) -> str:
    """Return a message that says why a value cannot be in a column. The message contains the error
    of Arrow or, if Arrow raises none, `cause`: the error of `to_column`."""
    message = f"a value of type {type(value).__name__} that Arrow cannot hold"
    try:
        pa.array([value])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return f"{message}: {error}"
    return f"{message}: {cause}"


def _most_common(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """Return the most common type that is not null; the first one of equally common types."""
    counts = Counter(kind for kind in kinds if not pa.types.is_null(kind))
    return max(counts, key=lambda kind: counts[kind], default=pa.null())


def _as_lists_beside(
    kind: pa.DataType, column: pa.Array | pa.ChunkedArray
) -> pa.Array | pa.ChunkedArray:
    """Return tensors as lists if `kind`, the type of their column, is a list. Ray does the same
    with arrays and lists in one batch. Return any other column unchanged."""
    if not (is_list(kind) and is_tensor(column.type)):
        return column
    return tensors_to_lists(pa.table({"column": column})).column(0)


def _cast(
    column: pa.Array | pa.ChunkedArray, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray | None:
    """Return a column in a wider type; None if the cast changes a value. Tensors do not change."""
    if column.type == kind or isinstance(kind, pa.BaseExtensionType):
        return column
    try:
        return exact_cast(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _concatenated(
    columns: Iterable[pa.Array | pa.ChunkedArray], kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Return one column of the type `kind` that has the rows of all columns."""
    if not isinstance(kind, pa.BaseExtensionType):
        return pa.chunked_array(chain.from_iterable(map(chunks_of, columns)), kind)
    tables = [pa.table({"column": column}) for column in columns]
    return concat(tables).column(0) if tables else pa.nulls(0, kind)
