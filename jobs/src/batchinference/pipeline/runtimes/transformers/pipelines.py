"""Runs tasks with the library's pipelines: converts rows to inputs, and results to columns."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import transformers
from PIL import Image
from transformers.pipelines import _maybe_load_ctc_decoder, check_task

from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.model_turns import computing
from batchinference.pipeline.runtimes import load_callable
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.text_limits import Windows, max_tokens, set_text_limit
from batchinference.pipeline.runtimes.transformers.loading import (
    NO_CODE,
    ModelLoader,
    check_options,
    pipeline_options,
    pop_loading_options,
)
from batchinference.pipeline.runtimes.transformers.media_inputs import (
    audio_samples,
    crop_reproducibly,
    pillow_images,
    warn_of_cut_audio,
)
from batchinference.pipeline.runtimes.transformers.text_inputs import (
    as_texts,
    buckets,
    match_tokenizer,
    set_padding_side,
)
from batchinference.pipeline.text_chunks import Span
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.transformers_tasks import FIELDS


@dataclass(frozen=True)
class PipelineBatch:
    """The inputs of a batch by name, with the model and the pipeline that computes the batch."""

    inputs: dict[str, np.ndarray]
    model: TransformersModel
    pipeline: Any


def text_rows(batch: PipelineBatch) -> list[Any]:
    """Return the texts of a batch."""
    return as_texts(batch.inputs["text"])


def image_rows(batch: PipelineBatch) -> list[Any]:
    """Return the images of a batch as Pillow images."""
    return list(pillow_images(batch.inputs["image"]))


def labeled_image_rows(batch: PipelineBatch) -> list[Any]:
    """Return the images of a batch, each with the candidate labels."""
    labels = batch.model.candidate_labels
    return [{"image": image, "candidate_labels": labels} for image in image_rows(batch)]


def audio_rows(batch: PipelineBatch) -> list[Any]:
    """Return the recordings of a batch as samples (float32) at the rate of the model."""
    extractor = batch.pipeline.feature_extractor
    rates = batch.inputs.get("sampling_rate")
    samples = audio_samples(batch.inputs["audio"], rates, extractor.sampling_rate)
    if batch.model.task != "automatic-speech-recognition":
        warn_of_cut_audio(samples, extractor, {})
    return samples


def ranked_columns(result: Any) -> Any:
    """Return dicts of label and score, like the results of the other zero-shot pipelines."""
    pairs = zip(result["labels"], result["scores"], strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


def entities(result: Any) -> Any:
    """Return tokens with labels, or groups of tokens if `aggregation_strategy` is set."""
    return [{**one, "label": one.get("entity_group", one.get("entity"))} for one in result]


def fillings(result: Any) -> Any:
    """Return the candidate tokens of all masks, each with the number of its mask from 0."""
    masks = result if result and isinstance(result[0], list) else [result]
    return [
        {**filling, "mask": mask} for mask, candidates in enumerate(masks) for filling in candidates
    ]


def depth(result: Any) -> Any:
    """Return the predicted depth as height x width."""
    return result["predicted_depth"].float().numpy().tolist()


def segments(result: Any) -> Any:
    """Return the segments. A mask is a PNG of the image's size, with 255 in the segment."""
    return [{**segment, "mask": _png(segment["mask"])} for segment in result]


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def timed_transcript(result: Any) -> Any:
    """Return the text and its parts, with the start and end of each part in seconds."""
    chunks = [
        {"text": chunk["text"], "start": chunk["timestamp"][0], "end": chunk["timestamp"][1]}
        for chunk in result["chunks"]
    ]
    return {"text": result["text"], "chunks": chunks}


def merged_entities(results: Sequence[Any], spans: Sequence[Span]) -> Any:
    """Return the entities of all windows, with their positions in the text. The first half of an
    overlap has entities of the first window, and the second half has entities of the next one."""
    entities: list[dict[str, Any]] = []
    limits = [(one.end + other.start) // 2 for one, other in pairwise(spans)]
    first = 0
    for result, span, limit in zip(results, spans, [*limits, spans[-1].end + 1], strict=True):
        for entity in result:
            start, end = (span.start + int(entity[side]) for side in ("start", "end"))
            if max(first, entities[-1]["end"] if entities else 0) <= start < limit:
                entities.append({**entity, "start": start, "end": end})
        first = limit
    return entities


def merged_scores(results: Sequence[Any], spans: Sequence[Span]) -> Any:
    """Return the mean score of each label over the windows, weighted by their numbers of tokens."""
    weights = [max(1, span.units) for span in spans]
    labels = results[0]["labels"]
    by_label = [dict(zip(one["labels"], one["scores"], strict=True)) for one in results]
    table = np.array([[scores[label] for label in labels] for scores in by_label])
    means = np.average(table, axis=0, weights=weights)
    order = np.argsort(-means, kind="stable")
    return {"labels": [labels[at] for at in order], "scores": means[order].tolist()}


MERGES: dict[str, Callable[[Sequence[Any], Sequence[Span]], Any]] = {
    "token-classification": merged_entities,
    "zero-shot-classification": merged_scores,
}
"""How the results for the windows of a text are combined, by task."""
_HYPOTHESIS = "This example is {}."
"""The library's default for `hypothesis_template`."""


class PipelineTexts:
    """Applies the policy for texts that are too long, because pipelines cut them without notice.
    Changes `options`: the pipeline for fill-mask then cuts texts instead of failing."""

    def __init__(self, model: TransformersModel, tokenizer: Any, options: dict[str, Any]) -> None:
        max_length = None
        if model.task == "fill-mask":
            arguments = options.get("tokenizer_kwargs", {})
            options["tokenizer_kwargs"] = {"truncation": True, **arguments}
            max_length = arguments.get("max_length")
        self._limit = set_text_limit(tokenizer, model, max_length or max_tokens(tokenizer))
        special, pair = (tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True))
        self._others = 0
        if model.task == "zero-shot-classification":
            template = options.get("hypothesis_template", _HYPOTHESIS)
            labels = (template.format(label) for label in model.candidate_labels)
            self._others = pair - special + max(map(self._limit.length, labels))
        self._reserved = special + self._others

    def windows(self, rows: Sequence[Any]) -> Windows | None:
        """Divide the texts of a batch into windows. For other policies, return None, and report a
        warning for each text that the pipeline is going to cut. Raises TextTooLong if such a text
        must not be cut, or if there is no room for windows."""
        if self._limit.divides:
            return self._limit.windows(rows, [self._reserved] * len(rows))
        self._limit.warn_of_cuts(rows, reserved=self._others)
        return None


class PipelineRuntime:
    def __init__(self, model: TransformersModel, device: Device) -> None:
        self._model = model
        self._task = task_of(model)
        self._type = arrow_type(model.result_type)
        self._options = dict(model.options)
        loading = pop_loading_options(self._options)
        self._pipeline = _pipeline(ModelLoader(model, device), model, loading)
        check_options(self._options, pipeline_options(self._pipeline))
        if model.task in RANKED:
            self._options["candidate_labels"] = model.candidate_labels
        # with a `stride`, the library itself divides texts into windows, and cuts nothing
        has_limit = model.task in FIELDS["too_long"] and "stride" not in self._options
        tokenizer = self._pipeline.tokenizer
        self._texts = PipelineTexts(model, tokenizer, self._options) if has_limit else None

    def __call__(self, inputs: dict[str, np.ndarray]) -> pa.Array:
        rows = self._task.rows(PipelineBatch(inputs, self._model, self._pipeline))
        with computing():  # also for tokenizing, because threads cannot share a tokenizer
            windows = self._texts.windows(rows) if self._texts else None
            if windows is None:
                results = self._results(rows, len(rows))
            else:
                merge, parts = MERGES[self._model.task], self._results(windows.texts, len(rows))
                results = [merge(parts[at], windows.spans[at]) for at in windows.groups()]
        return pa.array([self._task.result(result) for result in results], self._type)

    def _results(self, rows: list[Any], at_once: int) -> list[Any]:
        """Return the pipeline's result for each row. Computes at most `at_once` rows together."""
        results: list[Any] = [None] * len(rows)
        for group in self._groups(rows):
            part = self._run([rows[row] for row in group], at_once)
            for row, result in zip(group, part, strict=True):
                results[row] = result
        return results

    def _run(self, rows: list[Any], at_once: int) -> list[Any]:
        # the __call__ of some tasks would treat a list of one row as a single row
        call: Any = transformers.Pipeline.__call__
        options = self._options
        # times of words need batches of one row: the library would use the tokens of all rows
        size = 1 if options.get("return_timestamps") == "word" else min(len(rows), at_once)
        if self._model.task == "automatic-speech-recognition" and _is_long(rows[0], self._pipeline):
            options = {"return_timestamps": True, **options}  # Whisper needs them for long speech
        return list(call(self._pipeline, rows, batch_size=size, **options))

    def _groups(self, rows: list[Any]) -> Iterable[Sequence[int]]:
        """Return the row numbers of each group of rows that are computed together."""
        budget = self._model.max_tokens_per_batch
        if budget is not None:
            tokenizer = self._pipeline.tokenizer
            lengths = [len(ids) for ids in tokenizer(rows, truncation=True)["input_ids"]]
            return [group.tolist() for group in buckets(lengths, budget)]
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            groups[self._task.group_key(row, self._pipeline)].append(number)
        return groups.values()


_PARTS = ("tokenizer", "feature_extractor", "image_processor", "video_processor", "processor")


def _pipeline(loader: ModelLoader, model: TransformersModel, loading: dict[str, Any]) -> Any:
    network = loader.load_pipeline_model()
    parts = _component_sources(loader, model.task)
    if loading and "image" in model.inputs:
        parts["image_processor"] = loader.load_processor(transformers.AutoImageProcessor, **loading)
    where = {} if loader.device_map else {"device": loader.device}
    options = {**parts, **loader.revision, **NO_CODE, **where}
    make: Any = transformers.pipeline
    loaded = make(model.task, model=network, config=loader.path, **options)
    if loaded.feature_extractor is not None:
        crop_reproducibly(loaded.feature_extractor)
    if loaded.tokenizer is not None:
        match_tokenizer(loaded.tokenizer, network, model.source)
        set_padding_side(loaded.tokenizer, network)
    return loaded


def _component_sources(loader: ModelLoader, task: str) -> dict[str, Any]:
    """Return the sources of the components that the task needs in addition to the model, such as
    the tokenizer. The library requires these sources if the model is already loaded."""
    kind = load_callable(":".join(check_task(task)[1]["impl"].rsplit(".", 1)))
    parts = {part: loader.path for part in _PARTS if getattr(kind, f"_load_{part}") is not False}
    if task == "automatic-speech-recognition":
        _maybe_load_ctc_decoder(loader.path, loader.revision, parts, None)
    return parts


def _image_size(row: Any, _pipeline: Any) -> Hashable:
    """Return the size of a row's image. The pipelines do not pad images to a common size."""
    return tuple((row["image"] if isinstance(row, dict) else row).size)


def _audio_length(row: Any, pipeline: Any) -> Hashable:
    """Return the number of audio samples that the model gets. Return 0 if the model ignores
    padding, because recordings of any length can then be computed together."""
    if pipeline.type == "seq2seq_whisper":
        return max(len(row), int(pipeline.feature_extractor.n_samples))
    return len(row) if pipeline.type in ("ctc", "ctc_with_lm") else 0


def _is_long(row: Any, pipeline: Any) -> bool:
    """Return whether Whisper computes a recording in several windows."""
    is_whisper = pipeline.type == "seq2seq_whisper"
    return is_whisper and len(row) > int(pipeline.feature_extractor.n_samples)


@dataclass(frozen=True)
class PipelineTask:
    """The conversion of a task's inputs and results. `rows` returns the pipeline's input for each
    row of a batch. `result` converts the pipeline's result for one row to a value of the column
    type of the task. Rows for which `group_key` returns the same value are computed together. By
    default, all rows are computed together."""

    rows: Callable[[PipelineBatch], list[Any]]
    result: Callable[[Any], Any] = lambda result: result
    group_key: Callable[[Any, Any], Hashable] = lambda _row, _pipeline: True


RANKED = {
    "zero-shot-audio-classification": PipelineTask(audio_rows),
    "zero-shot-classification": PipelineTask(text_rows, ranked_columns),
    "zero-shot-image-classification": PipelineTask(image_rows, group_key=_image_size),
}
"""Tasks whose pipelines return all candidate labels, best first."""
TASKS = {
    **RANKED,
    "automatic-speech-recognition": PipelineTask(audio_rows, itemgetter("text"), _audio_length),
    "depth-estimation": PipelineTask(image_rows, depth, _image_size),
    "fill-mask": PipelineTask(text_rows, fillings),
    "image-segmentation": PipelineTask(image_rows, segments, _image_size),
    "object-detection": PipelineTask(image_rows, group_key=_image_size),
    "token-classification": PipelineTask(text_rows, entities),
    "zero-shot-object-detection": PipelineTask(labeled_image_rows, group_key=_image_size),
}


def task_of(model: TransformersModel) -> PipelineTask:
    """Return the task of a model. Its results depend on the fields `topK` and `options`."""
    task, top_k = TASKS[model.task], model.top_k
    if model.has_times:
        return replace(task, result=timed_transcript)
    if model.task in RANKED and top_k is None:
        return replace(task, result=lambda kind: task.result(kind)[0])
    if model.task in RANKED:
        return replace(task, result=lambda kind: task.result(kind)[:top_k])
    return task
