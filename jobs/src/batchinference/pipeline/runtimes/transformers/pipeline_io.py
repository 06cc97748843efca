"""Converts rows to the inputs of the library's pipelines, and their results to columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import torch
from PIL import Image

from batchinference.pipeline.runtimes.transformers.media import pictures, sounds, texts
from batchinference.spec.models import TransformersModel

LABELED = pa.struct([("label", pa.string()), ("score", pa.float32())])
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


def text(batch: Batch) -> list[Any]:
    return texts(batch.inputs["text"])


def request(batch: Batch) -> list[Any]:
    questions = batch.model.options["questions"]
    return [{"state": state, "questions": questions} for state in texts(batch.inputs["state"])]


def picture(batch: Batch) -> list[Any]:
    return list(pictures(batch.inputs["image"]))


def picture_with_labels(batch: Batch) -> list[Any]:
    labels = batch.model.candidate_labels
    return [{"image": image, "candidate_labels": labels} for image in picture(batch)]


def picture_pair(batch: Batch) -> list[Any]:
    others = pictures(batch.inputs["other_image"])
    return [list(pair) for pair in zip(picture(batch), others, strict=True)]


def sound(batch: Batch) -> list[Any]:
    rate = batch.pipeline.feature_extractor.sampling_rate
    return list(sounds(batch.inputs["audio"], batch.inputs.get("sampling_rate"), rate))


def document(batch: Batch) -> list[Any]:
    """Return the image and the question of each row. If known, add the words and their boxes (x0,
    y0, x1, y1 from 0 to 1000). Otherwise the library reads the words with Tesseract."""
    inputs = batch.inputs
    columns: dict[str, Any] = {"image": picture(batch), "question": texts(inputs["question"])}
    if "words" in inputs:
        pairs = zip(inputs["words"], inputs["boxes"], strict=True)
        columns["word_boxes"] = [_word_boxes(words, boxes) for words, boxes in pairs]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def table(batch: Batch) -> list[Any]:
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


def labels(logits: torch.Tensor, config: Any, top_k: int | None) -> pa.Array:
    """Return the most likely label of each row with its score, or a list of the `top_k` best.

    `logits` are rows x classes.
    """
    most = min(top_k or 1, logits.shape[1])
    scores, indices = _scores(logits, config).topk(most, dim=-1)
    names = pa.array([config.id2label[index] for index in indices.flatten().tolist()], pa.string())
    flat = pa.StructArray.from_arrays(
        [names, pa.array(scores.flatten().numpy())], fields=list(LABELED)
    )
    if top_k is None:
        return flat
    offsets = np.arange(len(logits) + 1, dtype=np.int32) * most
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def _scores(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """Return the scores as the library's pipelines do: probabilities, or for a regression the raw
    values."""
    if config.problem_type == "regression":
        return logits
    if config.problem_type == "multi_label_classification" or logits.shape[1] == 1:
        return logits.sigmoid()
    return logits.softmax(dim=-1)


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
    return [{**found, "mask": mask} for mask, some in enumerate(masks) for found in some]


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
