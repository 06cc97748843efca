"""Which columns each step finds, and whether those that it reads are there."""

from __future__ import annotations

import difflib

from batchinference.plan.pruning import column_added, columns_read
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem

OWN_PREFIX = "_bi_"
"""Columns that begin so are the product's own."""
_FORMAT_COLUMNS = {"images": "image", "text": "text", "binary": "bytes"}


def input_columns(spec: BatchInferenceSpec) -> list[str] | None:
    """The columns that come out of the reader; None where the files themselves decide."""
    column = _FORMAT_COLUMNS.get(spec.read.format)
    if column is None:
        return None
    return [column, "path"] if spec.read.options.include_paths else [column]


def check_columns(spec: BatchInferenceSpec, columns: list[str] | None) -> list[Problem]:
    """Steps that read columns which are not there; none found after a step of your own code,
    whose columns only running it would tell."""
    problems: list[Problem] = []
    for index, step in enumerate(spec.steps):
        if columns is None or step.python is not None:
            return problems
        for column in sorted(columns_read(step) - set(columns)):
            where = f"spec.steps[{index}]"
            problems.append(Problem(where, _missing(step.name, column, columns)))
        added = column_added(step)
        columns = step.select_columns or [
            column for column in columns if column not in (step.drop_columns or [])
        ]
        if added is not None and added not in columns:
            columns = [*columns, added]
    if columns == []:
        problems.append(Problem("spec.steps", "they drop every column: nothing is left to write"))
    return problems


def _missing(step: str, column: str, columns: list[str]) -> str:
    nearest = difflib.get_close_matches(column, columns, n=1)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    there = ", ".join(columns) or "none"
    return f"step '{step}' reads column '{column}', but the columns here are {there}{hint}"
