"""Embeds the query of a similarity search: a text, an image or a row of the output.

A text or an image is embedded with the job's reader options and model, without its other steps.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import BadInput, JobFailure, ModelLoad
from batchinference.pipeline.runtimes.device import device_of
from batchinference.pipeline.search.index import Index
from batchinference.pipeline.search.search import one_embedding
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.media import ImageFields
from batchinference.spec.models import Model
from batchinference.spec.read import ImageOptions
from batchinference.spec.steps import Step

if TYPE_CHECKING:
    from batchinference.pipeline.steps import Transform

_SHARED_FIELDS = {"runtime", "source", "revision", "dtype", "attention", "truncate_dim"}
"""Model fields that also apply to the other kind of input."""
_SOURCE_FIELDS = {
    *("runtime", "source", "revision", "storage", "trust_source", "arch", "weights"),
    *("factory", "factory_args", "url", "name", "api_key_env", "headers_from", "lora_path"),
}
"""Model fields that state what is loaded, from where, and where requests and keys are sent."""
QUERY = "query"
"""The column that contains the query's text or image."""


def named_model(index: Index) -> str:
    """Return the fields that identify the model of queries and its source, as ASCII JSON."""
    model = _step_of(index).model
    how: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_defaults": True}
    return json.dumps(model.model_dump(**how, include=_SOURCE_FIELDS) if model else {})


class LoadedModels:
    """Models that embed queries. Each of them is loaded once."""

    def __init__(self) -> None:
        self._loaded: dict[str, Transform] = {}

    def of(self, step: Step) -> Transform:
        """Return the model of a step."""
        from batchinference.pipeline.steps import load_step

        key = step.model_dump_json()
        if key not in self._loaded:
            device = device_of(cpus=os.cpu_count() or 1, gpus=0)
            self._loaded[key] = load_step(step, device)
        return self._loaded[key]


def of_text(index: Index, text: str, models: LoadedModels | None = None) -> np.ndarray:
    """Return the embedding of a text, 1 x width. `models` keeps the loaded model."""
    return _embed(models or LoadedModels(), step_for(index, "text"), pa.table({QUERY: [text]}))


def of_image(index: Index, file: Location, models: LoadedModels | None = None) -> np.ndarray:
    """Return the embedding of the image in a file, 1 x width. `models` keeps the loaded model."""
    return _embed(models or LoadedModels(), step_for(index, "image"), _image(index.spec, file))


def step_for(index: Index, kind: str) -> Step:
    """Return the job's embedding step, configured to embed a `text` or an `image`.

    Raises BadInput if there is no such step, or if it needs more input than the query.
    """
    step = _step_of(index)
    input_kind = _input_kind(index.spec, step.model) if step.model else None
    if step.model is None or input_kind is None:
        raise BadInput(
            f"step '{step.name}' made the embeddings in column '{index.column}' of more than a "
            "text or an image: search with --row"
        )
    if input_kind == kind:
        _refuse_preprocessed_input(index, step)
        inputs = dict.fromkeys(step.model.inputs, QUERY)
        return step.model_copy(update={"model": step.model.model_copy(update={"inputs": inputs})})
    return step.model_copy(update={"model": _model_for_other_input(step.model, input_kind, kind)})


def _input_kind(spec: BatchInferenceSpec, model: Model) -> str | None:
    """Return `text` or `image`, the kind of input that a model embeds; None for other models."""
    ((name, column), *others) = model.inputs.items()
    if others:
        return None
    if name in ("text", "image"):
        return name
    if isinstance(spec.read.options, ImageFields) and column in (spec.read.own_columns or ()):
        return "image"
    return "text" if model.uses_texts else None


def _model_for_other_input(model: Model, input_kind: str, kind: str) -> Model:
    """Return the same model for the other kind of input, without the options for the job's kind.

    Raises BadInput if the model does not take the other kind.
    """
    other = {"inputs": {kind: QUERY}, "output": model.output}
    fields = model.model_dump(include=_SHARED_FIELDS, by_alias=True, exclude_unset=True)
    changed = model.fields_to_embed(kind)
    if changed is None or (changed and not _has_two_towers(model)):
        raise BadInput(
            f"--{kind} needs a model of texts and images, such as CLIP, and the job's model takes "
            f"one {input_kind} a row"
        )
    return type(model).model_validate({**fields, **other, **changed})


def _has_two_towers(model: Model) -> bool:
    """Return whether a model of one task has a tower for texts and one for images."""
    from transformers import AutoConfig

    from batchinference.pipeline.runtimes.model_files import resolve
    from batchinference.pipeline.runtimes.transformers.loading import NO_CODE

    try:
        revision = model.revision_or_none
        source = resolve(model.source_or_none or "", revision, model.storage_of_source)
        config = AutoConfig.from_pretrained(source, revision=revision, **NO_CODE)
    except (OSError, ValueError) as error:
        raise ModelLoad(f"the job's model cannot be loaded: {error}") from error
    return hasattr(config, "text_config") and hasattr(config, "vision_config")


def _step_of(index: Index) -> Step:
    """Return the last step whose model wrote the column. A later step may have renamed it."""
    column = index.column
    for step in reversed(index.spec.steps):
        if step.model is not None and step.model.output == column:
            return step
        renamed = {new: old for old, new in step.facts.renames.items()}
        column = renamed.get(column, column)
    raise BadInput(
        f"no model of the job made column '{index.column}', so a query cannot be embedded "
        "alike: search with --row"
    )


def _refuse_preprocessed_input(index: Index, embed: Step) -> None:
    """Raise BadInput if a step may have computed the model's input. A query skips that step."""
    input_columns = set(embed.model.inputs.values()) if embed.model else set()
    for step in index.spec.steps[: index.spec.steps.index(embed)]:
        computes = step.facts.result or step.facts.expressions
        if step.facts.user_code or (computes and input_columns.intersection(step.facts.adds)):
            raise BadInput(
                f"step '{step.name}' prepares what step '{embed.name}' embeds, and a query does "
                "not go through it: search with --row"
            )


def _image(spec: BatchInferenceSpec, file: Location) -> pa.Table:
    from batchinference.pipeline.input.readers import BadRow
    from batchinference.pipeline.input.readers.images import ImageReader

    sources = [spec.read.options, *(step.decode for step in spec.steps)]
    fields = next((one for one in reversed(sources) if isinstance(one, ImageFields)), ImageFields())
    options = {name: getattr(fields, name) for name in ImageFields.model_fields}
    try:
        (row,) = ImageReader(ImageOptions().model_copy(update=options)).read(file)
    except OSError as error:
        raise BadInput(f"'{file.uri}' cannot be read: {error}") from error
    if isinstance(row, BadRow):
        raise BadInput(f"'{file.uri}' cannot be read as an image: {row.error}")
    return row.rename_columns([QUERY])


def _embed(models: LoadedModels, step: Step, query: pa.Table) -> np.ndarray:
    from batchinference.pipeline.arrow import tensors_to_lists
    from batchinference.pipeline.steps import TransformResult

    transform = models.of(step)
    try:
        embedded = transform(query)
    except JobFailure:
        raise
    except Exception as error:
        raise JobFailure(f"the query cannot be embedded: {error}") from error
    if isinstance(embedded, TransformResult):
        problem = embedded.failed.get(0, "it is empty")
        raise JobFailure(f"the query cannot be embedded: {problem}")
    return one_embedding(tensors_to_lists(embedded.drop_columns(QUERY)).column(0), "the query")


SCAN_ROWS = 16384
SHOWN = 5


def of_row(index: Index, row: str) -> np.ndarray:
    """Return the embedding of a row (1 x width). `row` is its number, or COLUMN=VALUE."""
    number = int(row) if row.isdecimal() else _row_where(index, row)
    if number >= index.starts[-1]:
        raise BadInput(f"there is no row {number}: '{index.output.uri}' has {index.starts[-1]} "
                       "rows, counted from 0")  # fmt: skip
    column = index.take(np.array([number]), [index.column]).column(0)
    return one_embedding(column, f"row {number} of '{index.output.uri}'")


def _row_where(index: Index, row: str) -> int:
    """Return the number of the only row that matches COLUMN=VALUE.

    Raises BadInput if no row or several rows match."""
    name, equals, value = row.partition("=")
    if not equals or name not in index.schema.names:
        raise BadInput(
            f"--row takes the number of a row or COLUMN=VALUE, got '{row}'; the columns are "
            f"{', '.join(index.schema.names)}"
        )
    wanted = _value(name, value, index.schema.field(name).type)
    found: list[int] = []
    for first, batch in index.batches([name], SCAN_ROWS):
        same = pc.fill_null(pc.equal(batch.column(name), wanted), False).to_numpy()
        found += (first + np.flatnonzero(same)).tolist()
        if len(found) > SHOWN:
            break
    if len(found) != 1:
        listed = ", ".join(map(str, found[:SHOWN])) + ("..." if len(found) > SHOWN else "")
        which = f"rows {listed}: choose one by its number" if found else "no row"
        raise BadInput(f"{row} is true for {which}")
    return found[0]


def _value(name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadInput(f"--row: '{text}' is no {kind}, which column '{name}' holds") from None
