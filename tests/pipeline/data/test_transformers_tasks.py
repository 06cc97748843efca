"""Tasks of transformers: results equal the library's own pipeline, one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import pytest
import transformers
from PIL import Image
from sklearn.datasets import load_digits

from batchinference.spec.models.transformers_tasks import Task
from support.documents.minimal import Document
from support.inputs.media_files import saved
from support.models.run_transformers import alike, loaded, photographs, rows_of, run

TEXTS = ["hello world", "the quick brown fox", "hello"]
LABELS = ["left", "right", "up"]
GENERATED = ("text-generation", "image-text-to-text")
ENCODED = ("feature-extraction", "image-feature-extraction", "image-classification")
Given = dict[str, Any]


def sounds() -> list[np.ndarray]:
    """Return three waves in the shape of handwritten digits; two have the same length."""
    shapes = load_digits().data[:3].astype(np.float32) / 16 - 0.5
    return [np.tile(shape, length) for shape, length in zip(shapes, (14, 25, 14), strict=True)]


@dataclass(frozen=True)
class Case:
    """A model with its columns and fields, the call of the library's pipeline for a row, and the
    part of the library's answer that becomes the result."""

    task: str
    model: str
    columns: dict[str, list[Any]]
    call: Callable[[Any, Given], Any]
    answer: Callable[[Any], Any] = lambda answer: answer
    fields: Document = field(default_factory=dict)


def of(name: str, **options: Any) -> Callable[[Any, Given], Any]:
    """Return a function that calls the pipeline with one column and these options."""

    def call(pipeline: Any, row: Given) -> Any:
        value = Image.fromarray(row[name]) if name == "image" else row[name]
        return pipeline(value, **options)

    return call


def entities(answers: Any) -> Any:
    keys = ("label", "score", "word", "start", "end")
    named = [{"label": one.get("entity", one.get("entity_group")), **one} for one in answers]
    return [{key: one.get(key) for key in keys} for one in named]


def fillings(answers: Any) -> Any:
    masks = answers if isinstance(answers[0], list) else [answers]
    return [{"mask": at, **one} for at, answers in enumerate(masks) for one in answers]


def ranked(answer: Any) -> Any:
    pairs = zip(answer["labels"], answer["scores"], strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


def segments(answers: Any) -> Any:
    return [{**answer, "mask": saved(answer["mask"], "PNG")} for answer in answers]


def timed(answer: Any) -> Any:
    chunks = [(chunk["text"], *chunk["timestamp"]) for chunk in answer["chunks"]]
    named = [{"text": text, "start": start, "end": end} for text, start, end in chunks]
    return {"text": answer["text"], "chunks": named}


IMAGES: dict[str, list[Any]] = {"image": photographs((50, 40), (64, 64), (50, 40))}
SOUNDS: dict[str, list[Any]] = {"audio": sounds()}
SAID: dict[str, list[Any]] = {"text": TEXTS}
HEARD = "automatic-speech-recognition"
MASKED = {"text": ["a [MASK] c", "[MASK] and [MASK]", "hello worl[MASK]"]}
ZERO = {"candidateLabels": LABELS}


def options(**given: Any) -> Document:
    return {"options": given}


CASES = [
    Case(HEARD, "speech_recognizer", SOUNDS, of("audio"), lambda answer: answer["text"]),
    Case(HEARD, "speech_recognizer", SOUNDS, of("audio", return_timestamps="char"), timed,
         options(return_timestamps="char")),
    Case("audio-classification", "audio_classifier", SOUNDS, of("audio", top_k=2),
         fields={"topK": 2}),
    Case("depth-estimation", "depth_estimator", IMAGES, of("image"),
         lambda answer: answer["predicted_depth"].tolist()),
    Case("fill-mask", "masked_model", MASKED, of("text", top_k=2), fillings, options(top_k=2)),
    Case("image-segmentation", "segmenter", IMAGES, of("image"), segments),
    Case("object-detection", "object_detector", IMAGES, of("image", threshold=0.1),
         fields=options(threshold=0.1)),
    Case("text-classification", "regressor", {"text_pair": TEXTS[::-1], "text": TEXTS},
         lambda pipeline, row: pipeline({"text": row["text"], "text_pair": row["text_pair"]})),
    Case("token-classification", "token_classifier", SAID, of("text"), entities),
    Case("token-classification", "token_classifier", SAID,
         of("text", aggregation_strategy="simple"), entities,
         options(aggregation_strategy="simple")),
    Case("zero-shot-audio-classification", "audio_text_model", SOUNDS,
         of("audio", candidate_labels=LABELS), fields={**ZERO, "topK": 3}),
    Case("zero-shot-classification", "entailment_model", SAID,
         of("text", candidate_labels=LABELS, multi_label=True),
         lambda answer: ranked(answer)[:2], {**ZERO, "topK": 2, **options(multi_label=True)}),
    Case("zero-shot-image-classification", "clip", IMAGES, of("image", candidate_labels=LABELS),
         lambda answers: answers[0], ZERO),
    Case("zero-shot-object-detection", "zero_shot_detector", IMAGES,
         of("image", candidate_labels=LABELS, threshold=0.2),
         fields={**ZERO, **options(threshold=0.2)}),
]  # fmt: skip
COVERED_ELSEWHERE = {*GENERATED, *ENCODED, "video-classification"}


def name_of(case: Case) -> str:
    return " ".join([case.task, *case.fields.get("options", {})])


def test_table_has_every_task() -> None:
    assert set(get_args(Task)) < set(transformers.pipelines.SUPPORTED_TASKS)
    assert {case.task for case in CASES} == set(get_args(Task)) - COVERED_ELSEWHERE


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_task_equals_the_librarys_pipeline(case: Case, tiny: Callable[[str], str]) -> None:
    source = tiny(case.model)
    pipeline: Any = transformers.pipeline
    direct = pipeline(case.task, model=source, device="cpu")
    expected = [case.answer(case.call(direct, row)) for row in rows_of(case.columns)]
    results = run(loaded(case.task, source, case.columns, **case.fields), case.columns)
    assert any(expected), "nothing to compare"
    for result, wanted in zip(results, expected, strict=True):
        assert alike(result, wanted), (result, wanted)
