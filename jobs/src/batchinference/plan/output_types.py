"""The types of the results of models, as far as the job says them, in the notation of
`spec.column_types`."""

from __future__ import annotations

from collections.abc import Sequence

from batchinference.plan.pruning import columns_added
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models import HttpModel, Model, TransformersModel, VllmModel
from batchinference.spec.models.transformers_tasks import CLASSIFICATION, EMBEDDING
from batchinference.spec.steps import Step

_EMBEDDING: ColumnType = ["float32"]
_LABEL: ColumnType = {"label": "string", "score": "float32"}
_HTTP_TYPES: dict[str, ColumnType] = {
    **{"text": "string", "number": "float64", "integer": "int64", "boolean": "bool"},
    **{"chat": "string", "completions": "string", "embeddings": _EMBEDDING},
}


def output_type(model: Model) -> ColumnType | None:
    """Return the type of a model's output; None if it depends on the files of the model."""
    match model:
        case HttpModel():
            return _HTTP_TYPES.get(model.result_type if model.api == "json" else model.api)
        case VllmModel():
            return _EMBEDDING if model.task == "embed" else "string"
        case TransformersModel(task=task) if task in EMBEDDING:
            return _EMBEDDING
        case TransformersModel(task=task) if task in CLASSIFICATION:
            return [_LABEL] if model.top_k else _LABEL
        case TransformersModel(task="text-generation"):
            several = model.sampling.get("num_return_sequences", 1) != 1
            return ["string"] if several else "string"
    return None


def outputs_of(steps: Sequence[Step]) -> dict[str, ColumnType]:
    """Return the columns after all steps that hold a result of a model of known type."""
    types: dict[str, ColumnType] = {}
    for step in steps:
        if step.python is not None:
            types = {}
        new_names = step.rename_columns or {}
        exploded = [step.explode.column] if step.explode else []
        changed = {*columns_added(step), *exploded, *new_names}
        renamed = {new: types[old] for old, new in new_names.items() if old in types}
        types = {name: kind for name, kind in types.items() if name not in changed} | renamed
        made = None if step.model is None else output_type(step.model)
        if step.model is not None and made is not None:
            types[step.model.output] = made
    return types
