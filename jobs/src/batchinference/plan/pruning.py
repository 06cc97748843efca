"""Moves column drops to right after the last step that needs the columns, to save memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchinference.spec.steps import Step


def drop_early(steps: list[Step]) -> list[Step]:
    """Return the steps with each column drop moved to right after the last step that needs it.

    The output is the same. A drop is never moved before a step with user code,
    because that code may read every column.
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


def _stops(placed: _Placed, column: str) -> bool:
    """Return whether the drop of a column cannot be moved before a step."""
    return placed.step.facts.user_code or column in placed.columns


def _insert_drop(steps: list[_Placed], drop: Step, column: str) -> None:
    """Insert the drop of a column after the last step with user code or with this column."""
    place = len(steps)
    while place > 0 and not _stops(steps[place - 1], column):
        place -= 1
    if not (place < len(steps) and steps[place].dropped):
        steps.insert(place, _Placed(drop, set()))
    steps[place].dropped.append(column)
    steps[place].columns.add(column)
