"""Defines the inputs and the result column of each task that runs in a library pipeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from batchinference.pipeline.runtimes.transformers import pipeline_inputs as inputs
from batchinference.pipeline.runtimes.transformers import pipeline_outputs as outputs
from batchinference.pipeline.runtimes.transformers.result_types import LABELED
from batchinference.spec.models import TransformersModel


def _alike(_row: Any, _pipeline: Any) -> Hashable:
    return True


def _size(row: Any, _pipeline: Any) -> Hashable:
    """Return the size of a row's image, because the pipelines do not pad images to one size."""
    size: tuple[int, int] = (row["image"] if isinstance(row, dict) else row).size
    return size


def _length(row: Any, pipeline: Any) -> Hashable:
    """Return the number of audio samples that the model receives, if the pipeline would treat
    padding as speech or cannot pad. Return 0 for other pipelines."""
    if pipeline.type == "seq2seq_whisper":
        shortest: int = pipeline.feature_extractor.n_samples
        return max(len(row), shortest)
    return len(row) if pipeline.type in ("ctc", "ctc_with_lm") else 0


@dataclass(frozen=True)
class PipelineTask:
    """The conversion of a task's inputs and results.

    `rows` converts a batch to the pipeline's input for each row. `result` converts the pipeline's
    result for one row to a value of `type`. Rows for which `kind` returns the same value are
    computed together. Without `kind`, each row is computed alone, because the pipeline does not
    support batches."""

    rows: Callable[[inputs.Batch], list[Any]]
    result: Callable[[Any], Any]
    type: pa.DataType
    kind: Callable[[Any, Any], Hashable] | None = None


def task_of(model: TransformersModel) -> PipelineTask:
    """Return the task, adapted to the fields of the model."""
    if model.task == "automatic-speech-recognition" and model.options.get("return_timestamps"):
        task = TASKS[model.task]
        return replace(task, result=outputs.timed_transcript, type=outputs.TRANSCRIPT)
    if model.task == "decision":
        return replace(TASKS[model.task], type=outputs.answers_type(model.options["questions"]))
    if model.task in RANKED:
        return _cut(RANKED[model.task], model.top_k)
    return TASKS[model.task]


def _cut(task: PipelineTask, top_k: int | None) -> PipelineTask:
    """Return the task with a result of only the best label, or of the `top_k` best."""
    if top_k is None:
        return replace(task, result=lambda found: task.result(found)[0], type=LABELED)
    return replace(task, result=lambda found: task.result(found)[:top_k])


_FOUND = pa.list_(outputs.OBJECT)
_LABELS = pa.list_(LABELED)
RANKED = {
    "zero-shot-audio-classification": PipelineTask(inputs.sound, outputs.listed, _LABELS, _alike),
    "zero-shot-classification": PipelineTask(inputs.text, outputs.ranked_columns, _LABELS, _alike),
    "zero-shot-image-classification": PipelineTask(inputs.picture, outputs.listed, _LABELS, _size),
}
"""Tasks whose pipelines return all candidate labels, best first."""
TASKS = {
    "automatic-speech-recognition": PipelineTask(
        inputs.sound, outputs.transcript, pa.string(), _length
    ),
    "decision": PipelineTask(inputs.request, outputs.answers, pa.null()),
    "depth-estimation": PipelineTask(inputs.picture, outputs.depth, outputs.DEPTH, _size),
    "document-question-answering": PipelineTask(
        inputs.document, outputs.listed, pa.list_(outputs.DOCUMENT_ANSWER)
    ),
    "fill-mask": PipelineTask(inputs.text, outputs.fillings, pa.list_(outputs.FILLING), _alike),
    "image-segmentation": PipelineTask(
        inputs.picture, outputs.segments, pa.list_(outputs.SEGMENT), _size
    ),
    "keypoint-matching": PipelineTask(inputs.picture_pair, outputs.listed, pa.list_(outputs.MATCH)),
    "mask-generation": PipelineTask(inputs.picture, outputs.masks, pa.list_(outputs.MASK)),
    "object-detection": PipelineTask(inputs.picture, outputs.listed, _FOUND, _size),
    "table-question-answering": PipelineTask(inputs.table, outputs.listed, outputs.TABLE_ANSWER),
    "text-to-audio": PipelineTask(inputs.text, outputs.speech, outputs.SPEECH),
    "token-classification": PipelineTask(
        inputs.text, outputs.entities, pa.list_(outputs.ENTITY), _alike
    ),
    "zero-shot-object-detection": PipelineTask(
        inputs.picture_with_labels, outputs.listed, _FOUND, _size
    ),
}
