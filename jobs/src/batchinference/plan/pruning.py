"""Drops columns right after the last step that needs them, so that later steps carry less."""

from __future__ import annotations

from batchinference.spec.expression import columns_of, parse_expression
from batchinference.spec.steps import Step


def drop_early(steps: list[Step]) -> list[Step]:
    """Return the steps with each dropped column dropped right after the last step that needs it.

    The resulting rows and columns are the same. A drop is never moved before a step with user code,
    because that code may read every column.
    """
    result: list[Step] = []
    for step in steps:
        if step.drop_columns is None:
            result.append(step)
            continue
        for column in step.drop_columns:
            _insert_drop(result, step, column)
    return result


def _insert_drop(steps: list[Step], drop: Step, column: str) -> None:
    place = len(steps)
    while place > 0 and not needs(steps[place - 1], column):
        place -= 1
    if place < len(steps) and (others := steps[place].drop_columns):
        steps[place] = steps[place].model_copy(update={"drop_columns": [*others, column]})
    else:
        steps.insert(place, drop.model_copy(update={"drop_columns": [column]}))


def needs(step: Step, column: str) -> bool:
    """Return whether the step needs the column, so that a drop must not be moved before it."""
    own_code = step.python is not None
    return own_code or column in columns_read(step) or column in columns_added(step)


def columns_read(step: Step) -> set[str]:
    """Return the columns that a step reads. Empty for user code, whose columns are unknown."""
    if step.model is not None:
        return set(step.model.inputs.values())
    if step.filter is not None:
        return columns_of(parse_expression(step.filter))
    if step.add_columns is not None:
        trees = map(parse_expression, step.add_columns.values())
        return {column for tree in trees for column in columns_of(tree)}
    if step.decode is not None:
        return {step.decode.column}
    if step.label_from_path is not None:
        return {"path"}
    if step.explode is not None:
        return {step.explode.column}
    if step.nearest is not None:
        return {step.nearest.column}
    return set(step.select_columns or step.drop_columns or step.rename_columns or [])


def columns_added(step: Step) -> list[str]:
    """Return the columns that a step adds or replaces. Empty for user code."""
    if step.model is not None:
        return [step.model.output]
    if step.add_columns is not None:
        return list(step.add_columns)
    if step.decode is not None:
        return step.decode.columns_added
    if step.label_from_path is not None:
        return [step.label_from_path.column]
    if step.nearest is not None:
        return [step.nearest.output]
    return list((step.rename_columns or {}).values())
