"""What the library's pipelines take and give, in columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from batchinference.pipeline.runtimes.transformers import findings, rows
from batchinference.pipeline.runtimes.transformers.results import LABELED
from batchinference.spec.models import TransformersModel


def _alike(_row: Any, _pipeline: Any) -> Hashable:
    return True


def _size(row: Any, _pipeline: Any) -> Hashable:
    """The size of a row's image: the pipelines do not pad images to one."""
    size: tuple[int, int] = (row["image"] if isinstance(row, dict) else row).size
    return size


def _length(row: Any, pipeline: Any) -> Hashable:
    """The samples of a sound as the model sees it, where the pipeline would take for speech what
    pads it, or cannot pad it."""
    if pipeline.type == "seq2seq_whisper":
        shortest: int = pipeline.feature_extractor.n_samples
        return max(len(row), shortest)
    return len(row) if pipeline.type in ("ctc", "ctc_with_lm") else 0


@dataclass(frozen=True)
class PipelineTask:
    """`rows` makes of a batch what the pipeline takes for each row; `result` makes of what it gives
    for one a value of `type`. Rows of one `kind`, as it tells them apart for a pipeline, are
    computed together; without it each is alone, because the pipeline cannot do otherwise."""

    rows: Callable[[rows.Batch], list[Any]]
    result: Callable[[Any], Any]
    type: pa.DataType
    kind: Callable[[Any, Any], Hashable] | None = None


def task_of(model: TransformersModel) -> PipelineTask:
    """The task as the model's own fields shape it."""
    if model.task == "automatic-speech-recognition" and model.options.get("return_timestamps"):
        task = TASKS[model.task]
        return replace(task, result=findings.timed_transcript, type=findings.TRANSCRIPT)
    if model.task == "decision":
        return replace(TASKS[model.task], type=findings.answers_type(model.options["questions"]))
    if model.task in RANKED:
        return _cut(RANKED[model.task], model.top_k)
    return TASKS[model.task]


def _cut(task: PipelineTask, top_k: int | None) -> PipelineTask:
    """The task with the best label alone, or a list of the best."""
    if top_k is None:
        return replace(task, result=lambda found: task.result(found)[0], type=LABELED)
    return replace(task, result=lambda found: task.result(found)[:top_k])


_FOUND = pa.list_(findings.OBJECT)
_LABELS = pa.list_(LABELED)
RANKED = {
    "zero-shot-audio-classification": PipelineTask(rows.sound, findings.listed, _LABELS, _alike),
    "zero-shot-classification": PipelineTask(rows.text, findings.ranked_columns, _LABELS, _alike),
    "zero-shot-image-classification": PipelineTask(rows.picture, findings.listed, _LABELS, _size),
}
"""Tasks that give all candidate labels, the best first."""
TASKS = {
    "automatic-speech-recognition": PipelineTask(
        rows.sound, findings.transcript, pa.string(), _length
    ),
    "decision": PipelineTask(rows.request, findings.answers, pa.null()),
    "depth-estimation": PipelineTask(rows.picture, findings.depth, findings.DEPTH, _size),
    "document-question-answering": PipelineTask(
        rows.document, findings.listed, pa.list_(findings.DOCUMENT_ANSWER)
    ),
    "fill-mask": PipelineTask(rows.text, findings.fillings, pa.list_(findings.FILLING), _alike),
    "image-segmentation": PipelineTask(
        rows.picture, findings.segments, pa.list_(findings.SEGMENT), _size
    ),
    "keypoint-matching": PipelineTask(rows.picture_pair, findings.listed, pa.list_(findings.MATCH)),
    "mask-generation": PipelineTask(rows.picture, findings.masks, pa.list_(findings.MASK)),
    "object-detection": PipelineTask(rows.picture, findings.listed, _FOUND, _size),
    "table-question-answering": PipelineTask(rows.table, findings.listed, findings.TABLE_ANSWER),
    "text-to-audio": PipelineTask(rows.text, findings.speech, findings.SPEECH),
    "token-classification": PipelineTask(
        rows.text, findings.entities, pa.list_(findings.ENTITY), _alike
    ),
    "zero-shot-object-detection": PipelineTask(
        rows.picture_with_labels, findings.listed, _FOUND, _size
    ),
}
