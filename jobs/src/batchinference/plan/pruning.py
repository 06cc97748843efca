"""Moves column drops to right after the last step that needs the columns, to save memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchinference.spec.expression import columns_read_by
from batchinference.spec.steps import Step


def drop_early(steps: list[Step]) -> list[Step]:
    """Return the steps with each column drop moved to right after the last step that needs it.

    The output is the same. A drop is never moved before a step with user code,
    because that code may read every column.
    """
    result: list[_Placed] = []
    for step in steps:
        if step.drop_columns is None:
            result.append(_Placed(step, {*columns_read(step), *columns_added(step)}))
            continue
        for column in step.drop_columns:
            _insert_drop(result, step, column)
    return [placed.result for placed in result]


@dataclass
class _Placed:
    """A step with the columns that it reads, adds or drops."""

    step: Step
    columns: set[str]
    dropped: list[str] = field(default_factory=list)

    @property
    def result(self) -> Step:
        update = {"drop_columns": self.dropped}
        return self.step.model_copy(update=update) if self.dropped else self.step


def _insert_drop(steps: list[_Placed], drop: Step, column: str) -> None:
    """Insert the drop of a column after the last step with user code or with this column."""
    place = len(steps)
    while place > 0 and not (steps[place - 1].step.python or column in steps[place - 1].columns):
        place -= 1
    if not (place < len(steps) and steps[place].dropped):
        steps.insert(place, _Placed(drop, set()))
    steps[place].dropped.append(column)
    steps[place].columns.add(column)


def columns_read(step: Step) -> set[str]:
    """Return the columns that a step reads; empty for user code, whose columns are unknown."""
    if step.model is not None:
        return set(step.model.inputs.values())
    if step.filter is not None:
        return set(columns_read_by(step.filter))
    if step.add_columns is not None:
        return set().union(*map(columns_read_by, step.add_columns.values()))
    if step.decode is not None:
        return {step.decode.column}
    if step.label_from_path is not None:
        return {"path"}
    if step.explode is not None:
        return {step.explode.column}
    if step.chunk is not None:
        return {step.chunk.column}
    if step.nearest is not None:
        return {step.nearest.column}
    return set(step.select_columns or step.drop_columns or step.rename_columns or [])


def columns_added(step: Step) -> list[str]:
    """Return the columns that a step adds or replaces; empty for user code."""
    if step.model is not None:
        return [step.model.output]
    if step.add_columns is not None:
        return list(step.add_columns)
    if step.decode is not None:
        return step.decode.columns_added
    if step.chunk is not None:
        return step.chunk.columns_added
    if step.label_from_path is not None:
        return [step.label_from_path.column]
    if step.nearest is not None:
        return [step.nearest.output]
    return list((step.rename_columns or {}).values())
