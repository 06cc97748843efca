"""Infers the columns after steps if no rows show them: before a job, or if all are filtered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.arrow import empty_table
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.row_batch import without_rows
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import class_of, load_step
from batchinference.pipeline.steps.transform import Transform, TransformResult, split_prepared

if TYPE_CHECKING:
    from batchinference.spec.steps import Step


def columns_after_all(
    steps: Sequence[Step], columns: pa.Schema, *, code_keeps_columns: bool = False
) -> pa.Schema:
    """Return the columns after all steps, inferred from the columns of the input. An empty schema
    means unknown columns, and the type null means an unknown type. Columns after user code are
    unknown. With `code_keeps_columns`, steps with user code are skipped instead."""
    table = empty_table(columns)
    for step in steps:
        if step.facts.user_code and code_keeps_columns:
            continue
        table = result_without_rows(step, table)
    return table.schema


def result_without_rows(
    step: Step, table: pa.Table, transform: Transform | None = None
) -> pa.Table:
    """Return the columns after a step, as a table without rows. `table` has the columns before the
    step. The result has no columns if they are unknown, and the type null for an unknown type.

    `transform` is called without rows if types do not depend on values. If `transform` is None, a
    step that loads nothing is called. Otherwise, the types come from the spec."""
    (empty, _), facts = split_prepared(without_rows([table])), step.facts
    if transform is None and class_of(step).LOADS_NOTHING:
        transform = load_step(step, Device())
    if transform is not None and not class_of(step).NEEDS_VALUES:
        with suppress(Exception):
            result = transform(empty)
            result = result.table if isinstance(result, TransformResult) else result
            if result.num_columns:
                return without_rows([result])
    old_names = {new: old for old, new in facts.renames.items()}
    types = dict(zip(empty.column_names, empty.schema.types, strict=True))
    for name, kind in facts.adds.items():
        types[name] = pa.null() if kind is None else arrow_type(kind)
    names = facts.columns_after(empty.column_names or None) or []
    columns = ((name, types.get(old_names.get(name, name), pa.null())) for name in names)
    return empty_table(pa.schema(list(columns)))
