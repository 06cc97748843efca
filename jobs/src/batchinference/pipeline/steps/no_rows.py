"""Finds the columns after a step of which no row is left, or to which no row has come."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.row_batch import without_rows
from batchinference.pipeline.steps import Transform, TransformResult

if TYPE_CHECKING:
    from batchinference.spec.models import Model
    from batchinference.spec.steps import Step

_EMBEDDING = pa.list_(pa.float32())
_LABEL = pa.struct([("label", pa.string()), ("score", pa.float32())])
_HTTP_TYPES = {
    **{"text": pa.string(), "number": pa.float64(), "integer": pa.int64(), "boolean": pa.bool_()},
    **{"chat": pa.string(), "completions": pa.string(), "embeddings": _EMBEDDING},
}


def columns_of(steps: Sequence[Step], columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns after all steps, as far as the job file says. `columns` are those of the
    input; None if they are unknown. Columns of unknown types are null."""
    table = pa.table({name: pa.nulls(0) for name in columns or ()})
    for step in steps:
        table = result_without_rows(step, table)
    return table.schema


def result_without_rows(
    step: Step, table: pa.Table, transform: Transform | None = None
) -> pa.Table:
    """Return the columns that a step would return for rows with the columns of a table. Columns of
    unknown types are null. There are no columns if they are unknown.

    `transform` is called without rows, unless it is a model or the user's code."""
    from batchinference.plan.columns import columns_after  # most workers do not need it

    empty = without_rows([table])
    if transform is not None and step.model is None and step.python is None:
        with suppress(Exception):
            result = transform(empty)
            result = result.table if isinstance(result, TransformResult) else result
            if result.num_columns:
                return without_rows([result])
    before = {new: old for old, new in (step.rename_columns or {}).items()}
    types = dict(zip(empty.column_names, empty.schema.types, strict=True))
    if step.model is not None:
        types[step.model.output] = _type_of(step.model)
    if step.chunk is not None:
        types |= dict.fromkeys(step.chunk.numbers_added, pa.int64())
    names = columns_after(step, empty.column_names or None) or []
    known = ((name, types.get(before.get(name, name), pa.null())) for name in names)
    return pa.schema(list(known)).empty_table()


def _type_of(model: Model) -> pa.DataType:
    """Return the type of a model's output; null if it depends on the files of the model."""
    from batchinference.spec.models import HttpModel, TransformersModel, VllmModel
    from batchinference.spec.models.transformers_tasks import CLASSIFICATION, EMBEDDING

    match model:
        case HttpModel():
            kind = model.result_type if model.api == "json" else model.api
            return _HTTP_TYPES.get(kind, pa.null())
        case VllmModel():
            return _EMBEDDING if model.task == "embed" else pa.string()
        case TransformersModel(task=task) if task in EMBEDDING:
            return _EMBEDDING
        case TransformersModel(task=task) if task in CLASSIFICATION:
            return pa.list_(_LABEL) if model.top_k else _LABEL
        case TransformersModel(task="text-generation"):
            several = model.sampling.get("num_return_sequences", 1) != 1
            return pa.list_(pa.string()) if several else pa.string()
    return pa.null()
