"""Defines the base class of all kinds of steps, and their results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import unreadable_rows
from batchinference.pipeline.row_warnings import RowWarning, errors_of
from batchinference.spec.reserved import PREPARED_PREFIX

if TYPE_CHECKING:
    from batchinference.pipeline.runtimes.device import Device

RESULT_BYTES = 64 << 20
"""Approximate maximum size of the results of one call of a step, in bytes. If a batch would give
more, the step returns a partial result."""


@dataclass(frozen=True)
class TransformResult:
    """The result of a step for a batch.

    A row of `table` was made from a batch row, its parent. `parents` has the index of each row's
    parent, in ascending order (int64). `failed` maps the index of each failed batch row to its
    error. A batch row that is neither in `parents` nor in `failed` is a filtered row.

    `rows` is None if the result covers the whole batch. A partial result covers only the first
    `rows` rows of the batch. The caller passes the other rows in another call."""

    table: pa.Table
    parents: np.ndarray
    failed: Mapping[int, Exception] = field(default_factory=dict)
    rows: int | None = None


def as_result(result: pa.Table | TransformResult) -> TransformResult:
    """Return a result as a TransformResult. A table has one row for each row of the batch."""
    if isinstance(result, TransformResult):
        return result
    return TransformResult(result, np.arange(result.num_rows))


def without_bad_rows(
    result: pa.Table | TransformResult,
    warnings: Sequence[RowWarning] = (),
    failing: Collection[str] = (),
) -> pa.Table | TransformResult:
    """Return a result in which more batch rows have failed. They are the parents of rows with an
    unreadable value, and rows with a warning whose name is in `failing`."""
    table = result if isinstance(result, pa.Table) else result.table
    errors = errors_of(warnings, failing)
    if not (unreadable := unreadable_rows(table)) and not errors:
        return result
    parents = as_result(result).parents
    errors |= {int(parents[row]): error for row, error in unreadable.items()}
    return fail_rows(result, errors)


def fail_rows(
    result: pa.Table | TransformResult, errors: Mapping[int, Exception]
) -> TransformResult:
    """Return a result in which the batch rows in `errors` have failed, too, and have no rows."""
    result = as_result(result)
    good = ~np.isin(result.parents, list(errors))
    table = result.table.filter(pa.array(good)) if good.any() else pa.table({})  # no rows: no types
    failed = {**errors, **result.failed}
    return replace(result, table=table, parents=result.parents[good], failed=failed)


def bytes_of_copy(table: pa.Table, first: int, rows: int) -> int:
    """Return the bytes of a copy of rows, without dictionary columns, which all copies share."""
    columns = (column for column in table.columns if not pa.types.is_dictionary(column.type))
    return sum(int(column.slice(first, rows).nbytes) for column in columns)


def all_failed(rows: int, error: Exception) -> TransformResult:
    """Return a result without rows, because all rows of a batch fail with the same error."""
    return TransformResult(pa.table({}), np.empty(0, np.int64), dict.fromkeys(range(rows), error))


class Transform:
    """A step that transforms the user's columns: the base class of all kinds of steps."""

    NEEDS_VALUES: ClassVar[bool] = False
    """Whether the types of the step's results are unknown if a batch has no rows."""
    LOADS_NOTHING: ClassVar[bool] = False
    """Whether the step loads neither files nor libraries."""

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        """Return the result for a batch: a table if each row became one row, in the same order."""
        raise NotImplementedError

    def take_notes(self) -> Sequence[str]:
        """Return notes for the report, as JSON, about the batches since the last call."""
        return ()

    def rows_to_compute(self, batch: pa.Table) -> np.ndarray | None:
        """Return a mask (bool) of the rows that the step does not skip; None if it skips none."""
        return None

    @classmethod
    def check(cls, step: str, settings: Any, *, batch_size: int | str | None = None) -> None:
        """Raise ModelLoad if it is already known that `load` would fail. Nothing is loaded.
        `settings` is the part of the spec that is named after the kind, such as `step.model`."""

    @classmethod
    def load(cls, step: str, settings: Any, device: Device) -> Transform:  # noqa: ARG003
        """Return a step ready to run. Raises ModelLoad if its model or code cannot be loaded."""
        return cls(step, settings)  # type: ignore[call-arg]

    @classmethod
    def check_types(cls, step: str, settings: Any, known: pa.Table) -> pa.Table | None:  # noqa: ARG003
        """Return the columns of known type after the step, without rows; None if `schema_inference`
        must infer them. `known` has such columns before the step. Raises UnsuitableTypes."""
        return None


def is_prepared(name: str) -> bool:
    """Return whether a column is a prepared column. Such columns hold tokens (see tokenization)."""
    return name.startswith(PREPARED_PREFIX)


def split_prepared(table: pa.Table) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
    """Return a table without prepared columns, and the prepared columns by name without prefix."""
    names = [*filter(is_prepared, table.column_names)]
    prepared = {name.removeprefix(PREPARED_PREFIX): table.column(name) for name in names}
    return (table.drop_columns(names) if names else table), prepared
