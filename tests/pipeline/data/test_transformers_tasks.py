"""Tasks of transformers: the results of the library's own pipeline, one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import skimage
import transformers
from PIL import Image
from sklearn.datasets import load_digits

from batchinference.spec.models.transformers_tasks import Task
from support.documents import Document
from support.transformers_runs import alike, loaded, rows_of, run

TEXTS = ["hello world", "the quick brown fox", "hello"]
LABELS = ["left", "right", "up"]
GENERATED = ("text-generation", "image-text-to-text", "any-to-any")
ENCODED = ("feature-extraction", "image-feature-extraction", "image-classification")
Given = dict[str, Any]


def photographs() -> list[np.ndarray]:
    """Photographs, two of them of one size."""
    images = []
    sizes = {"chelsea.png": (50, 40), "coffee.png": (64, 64), "rocket.jpg": (50, 40)}
    for name, size in sizes.items():
        with Image.open(Path(skimage.data_dir) / name) as image:
            images.append(np.asarray(image.convert("RGB").resize(size)))
    return images


def films() -> list[np.ndarray]:
    """Films in which a photograph passes by, 4, 7 and 11 frames long."""
    return [
        np.stack([np.roll(image, 3 * frame, axis=1) for frame in range(frames)])
        for image, frames in zip(photographs(), (4, 7, 11), strict=True)
    ]


def sounds() -> list[np.ndarray]:
    """Waves whose shape is that of a handwritten digit, two of them of one length."""
    shapes = load_digits().data[:3].astype(np.float32) / 16 - 0.5
    return [np.tile(shape, length) for shape, length in zip(shapes, (14, 25, 14), strict=True)]


def pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image)


def png(mask: Any) -> bytes:
    buffer = BytesIO()
    mask.save(buffer, format="PNG")
    return buffer.getvalue()


def same(given: Any) -> Any:
    return given


@dataclass(frozen=True)
class Case:
    """A model, its columns and fields; how the library is called with a row, and what of its answer
    comes into the row."""

    task: str
    model: str
    columns: dict[str, list[Any]]
    call: Callable[[Any, Given], Any]
    answer: Callable[[Any], Any] = same
    fields: Document = field(default_factory=dict)


def image(pipeline: Any, row: Given, **options: Any) -> Any:
    return pipeline(pillow(row["image"]), **options)


def text(pipeline: Any, row: Given, **options: Any) -> Any:
    return pipeline(row["text"], **options)


def sound(pipeline: Any, row: Given, **options: Any) -> Any:
    return pipeline(row["audio"], **options)


def found(answers: Any) -> Any:
    keys = ("label", "score", "word", "start", "end")
    return [{key: answer.get(key, answer.get("entity")) for key in keys} for answer in answers]


def fillings(answers: Any) -> Any:
    masks = answers if isinstance(answers[0], list) else [answers]
    return [{"mask": at, **one} for at, answers in enumerate(masks) for one in answers]


def ranked(answer: Any) -> Any:
    return [
        {"label": label, "score": score}
        for label, score in zip(answer["labels"], answer["scores"], strict=True)
    ]


def first(answers: Any) -> Any:
    return answers[0]


def chances(answers: Any) -> Any:
    return {
        name: {
            key: [{"label": label, "score": score} for label, score in value.items()]
            if key == "probabilities"
            else value
            for key, value in answer.items()
            if key not in ("type", "legend")
        }
        for name, answer in answers.items()
    }


def depths(answer: Any) -> Any:
    return answer["predicted_depth"].tolist()


def segments(answers: Any) -> Any:
    return [{**answer, "mask": png(answer["mask"])} for answer in answers]


def masks(answer: Any) -> Any:
    pairs = zip(answer["masks"], answer["scores"], strict=True)
    return [
        {"score": float(score), "mask": png(pillow(np.asarray(mask, np.uint8) * 255))}
        for mask, score in pairs
    ]


def timed(answer: Any) -> Any:
    chunks = answer["chunks"]
    return {
        "text": answer["text"],
        "chunks": [
            {"text": chunk["text"], "start": chunk["timestamp"][0], "end": chunk["timestamp"][1]}
            for chunk in chunks
        ],
    }


def speech(answer: Any) -> Any:
    return {"audio": answer["audio"].ravel().tolist(), "sampling_rate": answer["sampling_rate"]}


def match(pipeline: Any, row: Given) -> Any:
    return pipeline([pillow(row["image"]), pillow(row["other_image"])])


def ask_document(pipeline: Any, row: Given) -> Any:
    boxes = [[word, box] for word, box in zip(row["words"], row["boxes"], strict=True)]
    return pipeline(pillow(row["image"]), row["question"], boxes)


def ask_table(pipeline: Any, row: Given) -> Any:
    table = row["table"]
    lists = {name: [str(line[name]) for line in table] for name in table[0]}
    return pipeline(table=lists, query=row["query"])


def sums(answer: Any) -> Any:
    return {**answer, "coordinates": [list(place) for place in answer["coordinates"]]}


QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Is a refund asked for?"},
    "team": {"type": "choice", "instructions": "Whose?", "criteria": {"a": "sales", "b": "care"}},
    "haste": {"type": "score", "instructions": "How soon?", "criteria": ["later", "now"]},
}
TABLES = [
    [{"name": "ab", "count": 1}, {"name": "cd", "count": 2}],
    [{"name": "efg", "count": 10}, {"name": "h", "count": 3}],
    [{"name": "i", "count": 5}, {"name": "j", "count": 6}],
]
DOCUMENTS = {
    "image": photographs(),
    "question": ["what is it", "who", "where is it"],
    "words": [["a", "big", "house"], ["the", "cat"], ["on", "a", "mat", "here"]],
    "boxes": [[[0, 0, 10 * word, 10] for word in range(words)] for words in (3, 2, 4)],
}
SENSITIVE = {"pred_iou_thresh": -100, "stability_score_thresh": 0.0, "points_per_crop": 2}
IMAGES: dict[str, list[Any]] = {"image": photographs()}
SOUNDS: dict[str, list[Any]] = {"audio": sounds()}
SAID: dict[str, list[Any]] = {"text": TEXTS}
CASES = [
    Case("automatic-speech-recognition", "listener", SOUNDS, sound, lambda answer: answer["text"]),
    Case(
        "automatic-speech-recognition",
        "listener",
        SOUNDS,
        lambda pipeline, row: sound(pipeline, row, return_timestamps="char"),
        timed,
        {"options": {"return_timestamps": "char"}},
    ),
    Case(
        "audio-classification",
        "hearer",
        SOUNDS,
        lambda pipeline, row: sound(pipeline, row, top_k=2),
        fields={"topK": 2},
    ),
    Case(
        "decision",
        "decider",
        {"state": TEXTS},
        lambda pipeline, row: pipeline({"state": row["state"], "questions": QUESTIONS}),
        chances,
        {"options": {"questions": QUESTIONS}},
    ),
    Case("depth-estimation", "surveyor", IMAGES, image, depths),
    Case("document-question-answering", "reader", DOCUMENTS, ask_document),
    Case(
        "fill-mask",
        "masked",
        {"text": ["a [MASK] c", "[MASK] and [MASK]", "hello worl[MASK]"]},
        lambda pipeline, row: text(pipeline, row, top_k=2),
        fillings,
        {"options": {"top_k": 2}},
    ),
    Case("image-segmentation", "segmenter", IMAGES, image, segments),
    Case(
        "keypoint-matching",
        "matcher",
        {"image": photographs(), "other_image": photographs()[::-1]},
        match,
    ),
    Case(
        "mask-generation",
        "cutter",
        IMAGES,
        lambda pipeline, row: image(pipeline, row, **SENSITIVE),
        masks,
        {"options": SENSITIVE},
    ),
    Case(
        "object-detection",
        "detector",
        IMAGES,
        lambda pipeline, row: image(pipeline, row, threshold=0.1),
        fields={"options": {"threshold": 0.1}},
    ),
    Case(
        "table-question-answering",
        "bookkeeper",
        {"table": TABLES, "query": ["how many", "who", "what is it"]},
        ask_table,
        sums,
    ),
    Case(
        "text-classification",
        "grader",
        {"text_pair": TEXTS[::-1], "text": TEXTS},
        lambda pipeline, row: pipeline({"text": row["text"], "text_pair": row["text_pair"]}),
    ),
    Case("text-to-audio", "speaker", SAID, text, speech),
    Case("token-classification", "tagger", SAID, text, found),
    Case(
        "token-classification",
        "tagger",
        SAID,
        lambda pipeline, row: text(pipeline, row, aggregation_strategy="simple"),
        lambda answers: found([{"entity": one["entity_group"], **one} for one in answers]),
        {"options": {"aggregation_strategy": "simple"}},
    ),
    Case(
        "zero-shot-audio-classification",
        "sound_judge",
        SOUNDS,
        lambda pipeline, row: sound(pipeline, row, candidate_labels=LABELS),
        fields={"candidateLabels": LABELS, "topK": 3},
    ),
    Case(
        "zero-shot-classification",
        "entailment",
        SAID,
        lambda pipeline, row: text(pipeline, row, candidate_labels=LABELS, multi_label=True),
        lambda answer: ranked(answer)[:2],
        {"candidateLabels": LABELS, "topK": 2, "options": {"multi_label": True}},
    ),
    Case(
        "zero-shot-image-classification",
        "clip",
        IMAGES,
        lambda pipeline, row: image(pipeline, row, candidate_labels=LABELS),
        first,
        {"candidateLabels": LABELS},
    ),
    Case(
        "zero-shot-object-detection",
        "finder",
        IMAGES,
        lambda pipeline, row: image(pipeline, row, candidate_labels=LABELS, threshold=0.2),
        fields={"candidateLabels": LABELS, "options": {"threshold": 0.2}},
    ),
]
COVERED_BY_THEIR_OWN = {*GENERATED, *ENCODED, "video-classification"}


def name_of(case: Case) -> str:
    return " ".join([case.task, *case.fields.get("options", {})])


def test_every_task_of_the_library_is_there() -> None:
    assert set(get_args(Task)) == set(transformers.pipelines.SUPPORTED_TASKS)
    assert {case.task for case in CASES} == set(get_args(Task)) - COVERED_BY_THEIR_OWN


@pytest.fixture
def boxes_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps all boxes, because torchvision's own operator is not everywhere compiled."""
    from transformers.models.sam import image_processing_sam

    def keep(*, scores: Any, **_: Any) -> Any:
        return scores.argsort(descending=True)

    monkeypatch.setattr(image_processing_sam, "batched_nms", keep)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_task_gives_what_the_librarys_pipeline_gives(
    case: Case, tiny: Callable[[str], str], boxes_that_overlap: None
) -> None:
    source = tiny(case.model)
    pipeline: Any = transformers.pipeline
    direct = pipeline(case.task, model=source, device="cpu")
    expected = [case.answer(case.call(direct, row)) for row in rows_of(case.columns)]
    results = run(loaded(case.task, source, case.columns, **case.fields), case.columns)
    assert any(expected), "nothing was found that could be compared"
    for result, wanted in zip(results, expected, strict=True):
        assert alike(result, wanted), (result, wanted)
