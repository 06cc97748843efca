"""Columns are dropped as early as possible, with the same result.

The property test runs the steps on one row. The values of the row record how they were computed.
Two pipelines are equal if their rows are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.plan.stages import drop_early
from batchinference.spec.steps import Step
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import drop_step, filter_step, label_step, select_step, steps_of
from support.tiers import examples

Row = dict[str, Any]
START = ("image", "path", "size", "text")
ADDED = ("class", "score", "text")


@dataclass
class Run:
    """The row, the values that filters have read, and the columns that each step touched."""

    row: Row = field(default_factory=lambda: {name: name for name in START})
    seen: list[Any] = field(default_factory=list)
    touched: list[set[str]] = field(default_factory=list)


def interpret(steps: list[Step]) -> Run:
    """Run the steps on one row. Raises KeyError if a column is missing."""
    run = Run()
    for step in steps:
        run.touched.append(take(step, run))
    return run


def take(step: Step, run: Run) -> set[str]:
    """Run a step and return the columns that it touches."""
    row = run.row
    if step.python is not None:
        # Python code may read all columns and depend on their order
        row["own"] = (step.name, tuple(row.items()))
        return set(row)
    if step.model is not None:
        column = step.model.inputs["text"]
        row[step.model.output] = (step.name, row[column])
        return {column, step.model.output}
    if step.label_from_path is not None:
        row[step.label_from_path.column] = (step.name, row["path"])
        return {"path", step.label_from_path.column}
    if step.filter is not None:
        column = step.filter.split("'")[1]
        run.seen.append((step.name, row[column]))
        return {column}
    if step.select_columns is not None:
        run.row = {name: row[name] for name in step.select_columns}
        return set(step.select_columns)
    for column in step.drop_columns or []:
        del row[column]
    return set(step.drop_columns or [])


def _model(name: str, column: str, output: str) -> Document:
    step = model_step(name)
    return step | {"model": step["model"] | {"inputs": {"text": column}, "output": output}}


@st.composite
def pipelines(draw: Callable[[Any], Any]) -> list[Step]:
    """Generate steps that read only existing columns and leave at least one."""
    run = Run()
    steps: list[Step] = []
    for number in range(draw(st.integers(0, 8))):
        (step,) = steps_of(draw(_step(f"step-{number}", tuple(run.row))))
        take(step, run)
        steps.append(step)
    return steps


def _step(name: str, columns: tuple[str, ...]) -> st.SearchStrategy[Document]:
    one = st.sampled_from(columns)
    some = st.lists(one, min_size=1, max_size=len(columns), unique=True)
    kinds = [
        st.builds(_model, st.just(name), one, st.sampled_from(ADDED)),
        one.map(lambda column: filter_step(name, f"col('{column}') > 0")),
        some.map(lambda chosen: select_step(*chosen, name=name)),
        st.just(python_step(name)),
    ]
    if "path" in columns:
        kinds.append(st.sampled_from(ADDED).map(lambda column: label_step(column, name)))
    if len(columns) > 1:
        dropped = st.lists(one, min_size=1, max_size=len(columns) - 1, unique=True)
        kinds += [dropped.map(lambda chosen: drop_step(*chosen, name=name))] * 3
    return st.one_of(kinds)


def without_drops(steps: list[Step]) -> list[Step]:
    return [step for step in steps if step.drop_columns is None]


def drops_between_python_steps(steps: list[Step]) -> list[list[str]]:
    """Return the columns that are dropped before, between and after Python steps."""
    parts: list[list[str]] = [[]]
    for step in steps:
        if step.python:
            parts.append([])
        parts[-1] += step.drop_columns or []
    return [sorted(part) for part in parts]


@settings(max_examples=examples(300), deadline=None)
@given(pipelines())
def test_drops_move_as_early_as_possible_with_equal_results(steps: list[Step]) -> None:
    copies = [step.model_copy(deep=True) for step in steps]
    early = drop_early(steps)
    assert steps == copies
    before, after = interpret(steps), interpret(early)
    assert list(after.row.items()) == list(before.row.items())
    assert after.seen == before.seen
    assert without_drops(early) == without_drops(steps)
    assert drops_between_python_steps(early) == drops_between_python_steps(steps)
    for location, step in enumerate(early):
        if step.drop_columns and location > 0:
            assert set(step.drop_columns) <= after.touched[location - 1]
    assert drop_early(early) == early


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([model_step("embed"), filter_step("keep", "score > 1"), drop_step("text")],
         ["embed", "drop", "keep"]),
        ([filter_step("keep", "len(text) > 1"), drop_step("path")], ["drop", "keep"]),
        ([filter_step("keep", "score > 1"), python_step("own"), drop_step("text")],
         ["keep", "own", "drop"]),
        ([label_step("class"), filter_step("keep", "score > 1"), drop_step("class")],
         ["label", "drop", "keep"]),
        ([select_step("text", "path"), filter_step("keep", "len(text) > 1"), drop_step("path")],
         ["select", "drop", "keep"]),
        ([model_step("embed"), filter_step("keep", "len(path) > 1"), drop_step("path", "text")],
         ["embed", "drop", "keep", "drop"]),
        ([filter_step("keep", "len(col('odd name')) > 1"), drop_step("odd name")],
         ["keep", "drop"]),
    ],
)  # fmt: skip
def test_drop_moves_behind_the_last_step_that_needs_the_column(
    steps: list[Document], expected: list[str]
) -> None:
    assert [step.name for step in drop_early(steps_of(*steps))] == expected


def test_drops_at_one_position_are_merged() -> None:
    steps = steps_of(model_step(), drop_step("text", name="a"), drop_step("embedding", name="b"))
    assert [step.drop_columns for step in drop_early(steps)] == [None, ["text", "embedding"]]
