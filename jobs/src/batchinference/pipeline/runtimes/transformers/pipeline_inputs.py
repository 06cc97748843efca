"""Converts the rows of a batch to the inputs of the library's pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from batchinference.pipeline.runtimes.transformers.value_checks import pictures, sounds, texts
from batchinference.spec.models import TransformersModel


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
