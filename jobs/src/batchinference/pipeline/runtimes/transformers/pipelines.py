"""Runs tasks with the library's pipelines: converts rows to inputs, and results to columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import transformers
from PIL import Image
from transformers.pipelines import _maybe_load_ctc_decoder, check_task

from batchinference.pipeline.model_use import computing
from batchinference.pipeline.runtimes import load_callable
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.text_limits import truncation_explained
from batchinference.pipeline.runtimes.transformers.encoders import LABELED
from batchinference.pipeline.runtimes.transformers.inputs import (
    audio_samples,
    crop_alike,
    pillow_images,
    warn_of_cut_audio,
)
from batchinference.pipeline.runtimes.transformers.loading import (
    NO_CODE,
    Source,
    check_options,
    pipeline_options,
    take_loading,
)
from batchinference.pipeline.runtimes.transformers.pipeline_texts import MERGES, PipelineTexts
from batchinference.pipeline.runtimes.transformers.text_inputs import (
    buckets,
    fit,
    pad_behind,
    texts,
)
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.transformers_tasks import FIELDS

_SCORE = ("score", pa.float32())
_BOX = pa.struct([(side, pa.int32()) for side in ("xmin", "ymin", "xmax", "ymax")])
_POINT = pa.struct([("x", pa.float32()), ("y", pa.float32())])
OBJECT = pa.struct([("label", pa.string()), _SCORE, ("box", _BOX)])
SEGMENT = pa.struct([("label", pa.string()), _SCORE, ("mask", pa.binary())])
MASK = pa.struct([_SCORE, ("mask", pa.binary())])
MATCH = pa.struct([("keypoint_image_0", _POINT), ("keypoint_image_1", _POINT), _SCORE])
ENTITY = pa.struct(
    [
        *(("label", pa.string()), _SCORE, ("word", pa.string())),
        *(("start", pa.int32()), ("end", pa.int32())),
    ]
)
FILLING = pa.struct(
    [
        *(("mask", pa.int32()), _SCORE, ("token", pa.int64())),
        *(("token_str", pa.string()), ("sequence", pa.string())),
    ]
)
DEPTH = pa.list_(pa.list_(pa.float32()))
SPEECH = pa.struct([("audio", pa.list_(pa.float32())), ("sampling_rate", pa.int32())])
TABLE_ANSWER = pa.struct(
    [
        *(("answer", pa.string()), ("coordinates", pa.list_(pa.list_(pa.int32())))),
        *(("cells", pa.list_(pa.string())), ("aggregator", pa.string())),
    ]
)
DOCUMENT_ANSWER = pa.struct(
    [("answer", pa.string()), _SCORE, ("start", pa.int32()), ("end", pa.int32())]
)
_CHUNK = pa.struct([("text", pa.string()), ("start", pa.float32()), ("end", pa.float32())])
TRANSCRIPT = pa.struct([("text", pa.string()), ("chunks", pa.list_(_CHUNK))])


@dataclass(frozen=True)
class Batch:
    """The inputs of a batch by name, with the model and the pipeline that runs it."""

    inputs: dict[str, np.ndarray]
    model: TransformersModel
    pipeline: Any


def text_rows(batch: Batch) -> list[Any]:
    return texts(batch.inputs["text"])


def decision_rows(batch: Batch) -> list[Any]:
    questions = batch.model.options["questions"]
    return [{"state": state, "questions": questions} for state in texts(batch.inputs["state"])]


def image_rows(batch: Batch) -> list[Any]:
    return list(pillow_images(batch.inputs["image"]))


def labeled_image_rows(batch: Batch) -> list[Any]:
    labels = batch.model.candidate_labels
    return [{"image": image, "candidate_labels": labels} for image in image_rows(batch)]


def image_pair_rows(batch: Batch) -> list[Any]:
    others = pillow_images(batch.inputs["other_image"])
    return [list(pair) for pair in zip(image_rows(batch), others, strict=True)]


def audio_rows(batch: Batch) -> list[Any]:
    extractor = batch.pipeline.feature_extractor
    rates = batch.inputs.get("sampling_rate")
    samples = audio_samples(batch.inputs["audio"], rates, extractor.sampling_rate)
    if batch.model.task != "automatic-speech-recognition":
        warn_of_cut_audio(samples, extractor, {})
    return samples


def document_rows(batch: Batch) -> list[Any]:
    """Return the image and the question of each row. If known, add the words and their boxes (x0,
    y0, x1, y1 from 0 to 1000). Otherwise the library reads the words with Tesseract."""
    inputs = batch.inputs
    columns: dict[str, Any] = {"image": image_rows(batch), "question": texts(inputs["question"])}
    if "words" in inputs:
        pairs = zip(inputs["words"], inputs["boxes"], strict=True)
        columns["word_boxes"] = [_word_boxes(words, boxes) for words, boxes in pairs]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def table_rows(batch: Batch) -> list[Any]:
    """Return the table and the query of each row. The input tables are lists of structs, or structs
    of lists. The library requires all cells as text."""
    pairs = zip(batch.inputs["table"], texts(batch.inputs["query"]), strict=True)
    return [{"table": _table(value), "query": query} for value, query in pairs]


def _word_boxes(words: Any, boxes: Any) -> list[Any]:
    numbers = [[int(side) for side in box] for box in boxes]
    return [list(pair) for pair in zip(texts(words), numbers, strict=True)]


def _table(value: Any) -> pd.DataFrame:
    if isinstance(value, dict):
        frame = pd.DataFrame({name: list(cells) for name, cells in value.items()})
    elif isinstance(value, list | np.ndarray) and all(isinstance(row, dict) for row in value):
        frame = pd.DataFrame(list(value))
    else:
        got = type(value).__name__
        raise TypeError(f"expected a table: a list of structs or a struct of lists, got {got}")
    return frame.astype(object).where(frame.notna(), "").astype(str)


def listed(result: Any) -> Any:
    """Return the library's result unchanged."""
    return result


def ranked_columns(result: Any) -> Any:
    """Return labels with their scores, in the form that the other zero-shot tasks return."""
    pairs = zip(result["labels"], result["scores"], strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


def entities(result: Any) -> Any:
    """Return tokens, or words if `aggregation_strategy` is set."""
    return [{**found, "label": found.get("entity_group", found.get("entity"))} for found in result]


def fillings(result: Any) -> Any:
    """Return the tokens for each mask. Masks are counted from 0."""
    masks = result if result and isinstance(result[0], list) else [result]
    return [
        {**found, "mask": mask} for mask, candidates in enumerate(masks) for found in candidates
    ]


def depth(result: Any) -> Any:
    """Return the predicted depth as height x width."""
    return result["predicted_depth"].float().numpy().tolist()


def segments(result: Any) -> Any:
    """Return segments with masks as PNG of the image's size. Pixels of the segment are 255."""
    return [{**found, "mask": _png(found["mask"])} for found in result]


def masks(result: Any) -> Any:
    pairs = zip(result["masks"], result["scores"], strict=True)
    return [
        {"mask": _png(Image.fromarray(np.asarray(mask, np.uint8) * 255)), "score": float(score)}
        for mask, score in pairs
    ]


def speech(result: Any) -> Any:
    return {**result, "audio": result["audio"].astype(np.float32).ravel()}


def transcript(result: Any) -> Any:
    return result["text"]


def timed_transcript(result: Any) -> Any:
    """Return the text and its parts, with the begin and end of each part in seconds."""
    chunks = [
        {"text": chunk["text"], "start": chunk["timestamp"][0], "end": chunk["timestamp"][1]}
        for chunk in result["chunks"]
    ]
    return {"text": result["text"], "chunks": chunks}


def answers_type(questions: Mapping[str, Any]) -> pa.DataType:
    """Return a struct type with a field for each question."""
    return pa.struct([(name, _answer_type(asked)) for name, asked in questions.items()])


def _answer_type(question: dict[str, Any]) -> pa.DataType:
    kind = question.get("type")
    if kind == "noul":
        return pa.struct([("noul", pa.float32())])
    answer = ("choice", pa.string()) if kind == "choice" else ("score", pa.float32())
    rest = [("confidence", pa.float32()), ("probabilities", pa.list_(LABELED))]
    return pa.struct([answer, *rest])


def answers(result: Any) -> Any:
    return {name: _answer(found) for name, found in result.items()}


def _answer(found: dict[str, Any]) -> dict[str, Any]:
    chances = found.get("probabilities", {}).items()
    return {**found, "probabilities": [{"label": key, "score": value} for key, value in chances]}


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


_PARTS = ("tokenizer", "feature_extractor", "image_processor", "video_processor", "processor")


class PipelineRuntime:
    def __init__(self, model: TransformersModel, device: Device) -> None:
        self._model = model
        self._task = task_of(model)
        self._options = dict(model.options)
        self._options.pop("questions", None)  # passed with each row
        self._pipeline = _pipeline(Source(model, device), model, take_loading(self._options))
        check_options(self._options, pipeline_options(self._pipeline))
        if model.task in RANKED:
            self._options["candidate_labels"] = model.candidate_labels
        # with the library's own windows, nothing is cut
        has_limit = model.task in FIELDS["too_long"] and "stride" not in self._options
        self._texts = PipelineTexts(model, self._pipeline, self._options) if has_limit else None

    def __call__(self, inputs: dict[str, np.ndarray]) -> pa.Array:
        rows = self._task.rows(Batch(inputs, self._model, self._pipeline))
        with computing():  # the library prepares rows, too: threads cannot share a tokenizer
            windows = self._texts.windows(rows) if self._texts else None
            if windows is None:
                results = self._results(rows, len(rows))
            else:
                merge, parts = MERGES[self._model.task], self._results(windows.texts, len(rows))
                results = [merge(parts[at], windows.spans[at]) for at in windows.groups()]
        return pa.array([self._task.result(result) for result in results], self._task.type)

    def _results(self, rows: list[Any], at_once: int) -> list[Any]:
        """Return the pipeline's result for each row, of which `at_once` are computed together."""
        results: list[Any] = [None] * len(rows)
        for group in self._groups(rows):
            found = self._run([rows[row] for row in group], at_once)
            for row, result in zip(group, found, strict=True):
                results[row] = result
        return results

    def _run(self, rows: list[Any], at_once: int) -> list[Any]:
        # some tasks override __call__, which then treats a list of one row as a single row
        call: Any = transformers.Pipeline.__call__
        options = self._options
        # the library computes the times of words from the tokens of the whole batch
        alone = self._task.kind is None or options.get("return_timestamps") == "word"
        size = 1 if alone else min(len(rows), at_once)
        if self._model.task == "automatic-speech-recognition" and _is_long(rows[0], self._pipeline):
            options = {"return_timestamps": True, **options}  # Whisper needs them for long speech
        with truncation_explained(
            "a text that is never cut, such as a question or a label, is too long. Shorten it"
        ):
            found: list[Any] = call(self._pipeline, rows, batch_size=size, **options)
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
    if loaded.feature_extractor is not None:
        crop_alike(loaded.feature_extractor)
    if loaded.tokenizer is not None:
        fit(loaded.tokenizer, network, model.source)
        pad_behind(loaded.tokenizer, network)
    return loaded


def _parts(source: Source, task: str) -> dict[str, Any]:
    """Return the sources of the other components that the task needs, such as its tokenizer. The
    library requires them for a model that is already loaded."""
    kind = load_callable(":".join(check_task(task)[1]["impl"].rsplit(".", 1)))
    parts = {part: source.path for part in _PARTS if getattr(kind, f"_load_{part}") is not False}
    if task == "automatic-speech-recognition":
        _maybe_load_ctc_decoder(source.path, source.revision, parts, None)
    return parts


def _one_group(_row: Any, _pipeline: Any) -> Hashable:
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


def _is_long(row: Any, pipeline: Any) -> bool:
    """Return whether Whisper computes a recording in several windows."""
    if pipeline.type != "seq2seq_whisper":
        return False
    longest: int = pipeline.feature_extractor.n_samples
    return len(row) > longest


@dataclass(frozen=True)
class PipelineTask:
    """The conversion of a task's inputs and results.

    `rows` converts a batch to the pipeline's input for each row. `result` converts the pipeline's
    result for one row to a value of `type`. Rows for which `kind` returns the same value are
    computed together. Without `kind`, each row is computed alone, because the pipeline does not
    support batches."""

    rows: Callable[[Batch], list[Any]]
    result: Callable[[Any], Any]
    type: pa.DataType
    kind: Callable[[Any, Any], Hashable] | None = None


def task_of(model: TransformersModel) -> PipelineTask:
    """Return the task, adapted to the fields of the model."""
    if model.task == "automatic-speech-recognition" and model.options.get("return_timestamps"):
        task = TASKS[model.task]
        return replace(task, result=timed_transcript, type=TRANSCRIPT)
    if model.task == "decision":
        return replace(TASKS[model.task], type=answers_type(model.options["questions"]))
    if model.task in RANKED:
        return _limited(RANKED[model.task], model.top_k)
    return TASKS[model.task]


def _limited(task: PipelineTask, top_k: int | None) -> PipelineTask:
    """Return the task with a result of only the best label, or of the `top_k` best."""
    if top_k is None:
        return replace(task, result=lambda found: task.result(found)[0], type=LABELED)
    return replace(task, result=lambda found: task.result(found)[:top_k])


_FOUND = pa.list_(OBJECT)
_LABELS = pa.list_(LABELED)
RANKED = {
    "zero-shot-audio-classification": PipelineTask(audio_rows, listed, _LABELS, _one_group),
    "zero-shot-classification": PipelineTask(text_rows, ranked_columns, _LABELS, _one_group),
    "zero-shot-image-classification": PipelineTask(image_rows, listed, _LABELS, _size),
}
"""Tasks whose pipelines return all candidate labels, best first."""
TASKS = {
    "automatic-speech-recognition": PipelineTask(audio_rows, transcript, pa.string(), _length),
    "decision": PipelineTask(decision_rows, answers, pa.null()),
    "depth-estimation": PipelineTask(image_rows, depth, DEPTH, _size),
    "document-question-answering": PipelineTask(document_rows, listed, pa.list_(DOCUMENT_ANSWER)),
    "fill-mask": PipelineTask(text_rows, fillings, pa.list_(FILLING), _one_group),
    "image-segmentation": PipelineTask(image_rows, segments, pa.list_(SEGMENT), _size),
    "keypoint-matching": PipelineTask(image_pair_rows, listed, pa.list_(MATCH)),
    "mask-generation": PipelineTask(image_rows, masks, pa.list_(MASK)),
    "object-detection": PipelineTask(image_rows, listed, _FOUND, _size),
    "table-question-answering": PipelineTask(table_rows, listed, TABLE_ANSWER),
    "text-to-audio": PipelineTask(text_rows, speech, SPEECH),
    "token-classification": PipelineTask(text_rows, entities, pa.list_(ENTITY), _one_group),
    "zero-shot-object-detection": PipelineTask(labeled_image_rows, listed, _FOUND, _size),
}
