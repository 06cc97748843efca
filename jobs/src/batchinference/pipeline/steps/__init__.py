"""The interface of a step, and the kinds of steps, one module per kind."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import unreadable_rows
from batchinference.pipeline.row_warnings import RowWarning, errors_of

if TYPE_CHECKING:
    from batchinference.pipeline.runtimes.device import Device
    from batchinference.spec.column_types import ColumnType
    from batchinference.spec.steps import Step

RESULT_BYTES = 64 << 20
"""Approximate maximum bytes of the results that a step makes at a time. They are passed on before
the rest of the batch is computed."""


@dataclass(frozen=True)
class TransformResult:
    """The result of a batch if not every row became exactly one row.

    `parents` holds, for each row of `table`, the index of the batch row that it was made from, in
    ascending order (int64). `failed` maps the index of each failed batch row to its error. All
    other batch rows that are not in `parents` are filtered rows.

    `rows` is the number of batch rows that the result covers, if the step left the other rows for
    its next call; None for the whole batch. A step does this if its results become large.
    """

    table: pa.Table
    parents: np.ndarray
    failed: Mapping[int, Exception] = field(default_factory=dict)
    rows: int | None = None


def as_result(result: pa.Table | TransformResult) -> TransformResult:
    """Return a result. A table has one row for each row of the batch."""
    if isinstance(result, TransformResult):
        return result
    return TransformResult(result, np.arange(result.num_rows))


def checked(
    result: pa.Table | TransformResult,
    warnings: Sequence[RowWarning] = (),
    failing: Collection[str] = (),
) -> pa.Table | TransformResult:
    """Return a result without unreadable values. A batch row fails if a row made from it has such a
    value, or if it has a warning whose name is in `failing`."""
    table = result if isinstance(result, pa.Table) else result.table
    errors = errors_of(warnings, failing)
    if not (unreadable := unreadable_rows(table)) and not errors:
        return result
    parents = as_result(result).parents
    errors |= {int(parents[row]): error for row, error in unreadable.items()}
    return with_failed(result, errors)


def with_failed(
    result: pa.Table | TransformResult, errors: Mapping[int, Exception]
) -> TransformResult:
    """Return a result without the rows made from some batch rows, which fail with these errors."""
    result = as_result(result)
    good = ~np.isin(result.parents, list(errors))
    left = result.table.filter(pa.array(good)) if good.any() else pa.table({})  # no types
    failed = {**errors, **result.failed}
    return replace(result, table=left, parents=result.parents[good], failed=failed)


def of_first_rows(result: pa.Table | TransformResult, rows: int) -> TransformResult:
    """Return a result that covers only the first `rows` rows of a batch."""
    return replace(as_result(result), rows=rows)


def bytes_to_repeat(table: pa.Table, first: int, rows: int) -> int:
    """Return the bytes of one copy of some rows. Copies share the values of dictionaries."""
    columns = (column for column in table.columns if not pa.types.is_dictionary(column.type))
    return sum(int(column.slice(first, rows).nbytes) for column in columns)


def all_failed(rows: int, error: Exception) -> TransformResult:
    """Return a result without rows, because all rows of a batch fail with the same error."""
    return TransformResult(pa.table({}), np.empty(0, np.int64), dict.fromkeys(range(rows), error))


class Transform:
    """A step that transforms the user's columns: the base class of all kinds of steps."""

    NEEDS_VALUES: ClassVar[bool] = False
    """Whether the types of its results are unknown without rows."""
    LOADS_NOTHING: ClassVar[bool] = False
    """Whether it is made at once, without files or libraries."""

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        """Return a table if each row of the batch became one row, in the same order; otherwise a
        TransformResult."""
        raise NotImplementedError

    def take_notes(self) -> Sequence[str]:
        """Return notes for the report about the batches since the last notes, as JSON."""
        return ()

    def chosen(self, batch: pa.Table) -> np.ndarray | None:
        """Return a mask (bool) of the rows that the step computes; None for all of them."""
        return None

    @classmethod
    def check(cls, step: str, settings: Any, *, batch_size: int | str | None = None) -> None:
        """Raise an error if `load` would raise it. Nothing is loaded. `settings` are those of the
        kind of step."""

    @classmethod
    def load(cls, step: str, settings: Any, device: Device) -> Transform:  # noqa: ARG003
        """Return a step ready to run. Raises ModelLoad if its model or code cannot be loaded."""
        return cls(step, settings)  # type: ignore[call-arg]

    @classmethod
    def check_types(cls, step: str, settings: Any, known: pa.Table) -> pa.Table | None:  # noqa: ARG003
        """Return the columns of known type after a step; None if `result_without_rows` finds them.
        `known` has those before the step, without rows. Raises UnsuitableTypes."""
        return None


STEPS = {
    "model": ("model", "ModelTransform"),
    "python": ("user_code", "UserCode"),
    "filter": ("filter", "Filter"),
    "add_columns": ("column_steps", "AddColumns"),
    "decode": ("decode", "DecodeColumn"),
    "label_from_path": ("column_steps", "AddLabel"),
    "select_columns": ("column_steps", "SelectColumns"),
    "drop_columns": ("column_steps", "DropColumns"),
    "rename_columns": ("column_steps", "RenameColumns"),
    "explode": ("explode", "ExplodeList"),
    "chunk": ("chunk", "ChunkText"),
}
"""The class of each kind of step: a module of this package, which is imported when it is needed,
and a name."""


def class_of(step: Step) -> type[Transform]:
    """Return the class of a kind of step."""
    module, name = STEPS[step.kind]
    return cast(type[Transform], getattr(importlib.import_module(f"{__name__}.{module}"), name))


def check_step(step: Step) -> None:
    """Raise ModelLoad if a step's model or code does not exist. Nothing is loaded."""
    class_of(step).check(step.name, getattr(step, step.kind), batch_size=step.batch_size)


def load_step(step: Step, device: Device) -> Transform:
    """Return a step ready to run. Raises ModelLoad if its model or code cannot be loaded."""
    transform = class_of(step).load(step.name, getattr(step, step.kind), device)
    if step.model is not None and (step.dedupe or step.cache):
        from batchinference.pipeline.steps.dedupe import Reuse

        transform = Reuse(step, step.model, transform, device)
    return with_condition(step, transform)


def with_condition(
    step: Step, transform: Transform, adds: Mapping[str, ColumnType | None] | None = None
) -> Transform:
    """Return a step that runs only for the rows for which its condition is true, if it has one.
    `adds` are the columns that it adds; None for those of the step."""
    if step.when is None:
        return transform
    from batchinference.pipeline.steps.when import Conditional

    return Conditional(step, transform, step.facts.adds if adds is None else adds)
