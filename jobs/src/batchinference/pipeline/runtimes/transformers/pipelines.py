"""Runs tasks with the library's pipelines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import transformers
from transformers.pipelines import _maybe_load_ctc_decoder, check_task

from batchinference.pipeline.runtimes.base import load_callable
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.transformers import pipeline_io as io
from batchinference.pipeline.runtimes.transformers.loading import (
    NO_CODE,
    Source,
    check_options,
    of_pipeline,
    take_loading,
)
from batchinference.pipeline.runtimes.transformers.pipeline_io import Batch
from batchinference.pipeline.runtimes.transformers.tokens import buckets, fit
from batchinference.spec.models import TransformersModel

_PARTS = ("tokenizer", "feature_extractor", "image_processor", "video_processor", "processor")


class PipelineRuntime:
    def __init__(self, model: TransformersModel, device: Device) -> None:
        self._model = model
        self._task = task_of(model)
        self._options = dict(model.options)
        self._options.pop("questions", None)  # passed with each row
        self._pipeline = _pipeline(Source(model, device), model, take_loading(self._options))
        check_options(self._options, of_pipeline(self._pipeline))
        if model.task in RANKED:
            self._options["candidate_labels"] = model.candidate_labels

    def __call__(self, inputs: dict[str, np.ndarray]) -> pa.Array:
        rows = self._task.rows(Batch(inputs, self._model, self._pipeline))
        results: list[Any] = [None] * len(rows)
        for group in self._groups(rows):
            found = self._run([rows[row] for row in group])
            for row, result in zip(group, found, strict=True):
                results[row] = self._task.result(result)
        return pa.array(results, self._task.type)

    def _run(self, rows: list[Any]) -> list[Any]:
        # some tasks override __call__, which then treats a list of one row as a single row
        call: Any = transformers.Pipeline.__call__
        size = 1 if self._task.kind is None else len(rows)
        found: list[Any] = call(self._pipeline, rows, batch_size=size, **self._options)
        return found

    def _groups(self, rows: list[Any]) -> Iterable[Sequence[int]]:
        """Return groups of the numbers of rows that are computed together."""
        budget = self._model.max_tokens_per_batch
        if budget is not None:
            tokenizer = self._pipeline.tokenizer
            lengths = [len(ids) for ids in tokenizer(rows, truncation=True)["input_ids"]]
            return [group.tolist() for group in buckets(lengths, budget, None, 0)]
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            groups[self._task.kind and self._task.kind(row, self._pipeline)].append(number)
        return groups.values()


def _pipeline(source: Source, model: TransformersModel, loading: dict[str, Any]) -> Any:
    network = source.pipeline_model()
    parts = _parts(source, model.task)
    if loading and "image" in model.inputs:
        parts["image_processor"] = source.processor(transformers.AutoImageProcessor, **loading)
    where = {} if source.device_map else {"device": source.device}
    make: Any = transformers.pipeline
    loaded = make(
        model.task,
        model=network,
        config=source.path,
        **parts,
        **source.revision,
        **NO_CODE,
        **where,
    )
    if loaded.tokenizer is not None:
        fit(loaded.tokenizer, network, model.source)
    return loaded


def _parts(source: Source, task: str) -> dict[str, Any]:
    """Return where the library finds the other components that the task needs. The library requires
    this if it is given a model that is already loaded."""
    kind = load_callable(":".join(check_task(task)[1]["impl"].rsplit(".", 1)))
    parts = {part: source.path for part in _PARTS if getattr(kind, f"_load_{part}") is not False}
    if task == "automatic-speech-recognition":
        _maybe_load_ctc_decoder(source.path, source.revision, parts, None)
    return parts


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
