"""Defines the inputs and the result column of each task that runs in a library pipeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from batchinference.pipeline.runtimes.transformers import pipeline_io as io
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

    rows: Callable[[io.Batch], list[Any]]
    result: Callable[[Any], Any]
    type: pa.DataType
    kind: Callable[[Any, Any], Hashable] | None = None


def task_of(model: TransformersModel) -> PipelineTask:
    """Return the task, adapted to the fields of the model."""
    if model.task == "automatic-speech-recognition" and model.options.get("return_timestamps"):
        task = TASKS[model.task]
        return replace(task, result=io.timed_transcript, type=io.TRANSCRIPT)
    if model.task == "decision":
        return replace(TASKS[model.task], type=io.answers_type(model.options["questions"]))
    if model.task in RANKED:
        return _cut(RANKED[model.task], model.top_k)
    return TASKS[model.task]


def _cut(task: PipelineTask, top_k: int | None) -> PipelineTask:
    """Return the task with a result of only the best label, or of the `top_k` best."""
    if top_k is None:
        return replace(task, result=lambda found: task.result(found)[0], type=io.LABELED)
    return replace(task, result=lambda found: task.result(found)[:top_k])


_FOUND = pa.list_(io.OBJECT)
_LABELS = pa.list_(io.LABELED)
RANKED = {
    "zero-shot-audio-classification": PipelineTask(io.sound, io.listed, _LABELS, _alike),
    "zero-shot-classification": PipelineTask(io.text, io.ranked_columns, _LABELS, _alike),
    "zero-shot-image-classification": PipelineTask(io.picture, io.listed, _LABELS, _size),
}
"""Tasks whose pipelines return all candidate labels, best first."""
TASKS = {
    "automatic-speech-recognition": PipelineTask(io.sound, io.transcript, pa.string(), _length),
    "decision": PipelineTask(io.request, io.answers, pa.null()),
    "depth-estimation": PipelineTask(io.picture, io.depth, io.DEPTH, _size),
    "document-question-answering": PipelineTask(
        io.document, io.listed, pa.list_(io.DOCUMENT_ANSWER)
    ),
    "fill-mask": PipelineTask(io.text, io.fillings, pa.list_(io.FILLING), _alike),
    "image-segmentation": PipelineTask(io.picture, io.segments, pa.list_(io.SEGMENT), _size),
    "keypoint-matching": PipelineTask(io.picture_pair, io.listed, pa.list_(io.MATCH)),
    "mask-generation": PipelineTask(io.picture, io.masks, pa.list_(io.MASK)),
    "object-detection": PipelineTask(io.picture, io.listed, _FOUND, _size),
    "table-question-answering": PipelineTask(io.table, io.listed, io.TABLE_ANSWER),
    "text-to-audio": PipelineTask(io.text, io.speech, io.SPEECH),
    "token-classification": PipelineTask(io.text, io.entities, pa.list_(io.ENTITY), _alike),
    "zero-shot-object-detection": PipelineTask(io.picture_with_labels, io.listed, _FOUND, _size),
}
