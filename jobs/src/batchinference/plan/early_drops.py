"""Drops columns earlier: right after the last step that needs them, to save memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchinference.spec.steps import Step


def drop_early(steps: list[Step]) -> list[Step]:
    """Return the steps with each column dropped right after the last step that needs it.

    The output is the same. A drop is never moved before a step with user code, because that code
    may read every column.
    """
    result: list[_Placed] = []
    for step in steps:
        if step.drop_columns is None:
            result.append(_Placed(step, {*step.facts.reads, *step.facts.columns_added}))
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


def _needs(placed: _Placed, column: str) -> bool:
    """Return whether the step must run before the column is dropped."""
    return placed.step.facts.user_code or column in placed.columns


def _insert_drop(steps: list[_Placed], drop: Step, column: str) -> None:
    """Drop a column after the last step that needs it: in a new step, or in a drop that follows."""
    index = len(steps)
    while index > 0 and not _needs(steps[index - 1], column):
        index -= 1
    if not (index < len(steps) and steps[index].dropped):
        steps.insert(index, _Placed(drop, set()))
    steps[index].dropped.append(column)
    steps[index].columns.add(column)
