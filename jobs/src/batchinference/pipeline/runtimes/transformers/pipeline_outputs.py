"""Converts the results of the library's pipelines, and defines their Arrow types."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from batchinference.pipeline.runtimes.transformers.result_types import LABELED

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
