"""Encoders and tasks of transformers: results equal the library's for any batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from sklearn.datasets import load_digits

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes.transformers.encoders import EncoderRuntime
from batchinference.spec.models.transformers_tasks import Task
from plugins.messages import Messages
from support.documents.minimal import Document
from support.inputs.media_files import saved
from support.models.run_transformers import (
    alike,
    column,
    loaded,
    objects,
    photographs,
    rows_of,
    run,
)
from support.outputs.row_warnings import tokens_in

TEXTS = [
    *("a", "hello", "the quick brown fox jumps over the lazy dog", "", "x" * 300, "übung 1, 2"),
    *("batch inference", "hello"),
]
TOLERANCE = 1e-5
PHOTOS = photographs((90, 60), (40, 50), (64, 64))


def runtime(task: str, source: str, **fields: Any) -> EncoderRuntime:
    made = loaded(task, source, ["image" if "image" in task else "text"], **fields)
    assert isinstance(made, EncoderRuntime)
    return made


def hidden_states(source: str, texts: list[str], **options: Any) -> list[torch.Tensor]:
    """Return the last hidden state of each text, tokens x width. Each text runs without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source).eval()
    states = []
    for text in texts:
        tokens = tokenizer(text, return_tensors="pt", truncation=True, **options)
        with torch.inference_mode():
            states.append(model(**tokens).last_hidden_state[0])
    return states


def image_states(source: str, **options: Any) -> torch.Tensor:
    """Return the library's last hidden state for each photograph."""
    processor = transformers.AutoImageProcessor.from_pretrained(source)
    model = transformers.AutoModel.from_pretrained(source).eval()
    prepared = processor(images=PHOTOS, return_tensors="pt", **options)
    with torch.inference_mode():
        return torch.as_tensor(model(prepared["pixel_values"]).last_hidden_state)


def embed(loaded: EncoderRuntime, **inputs: list[Any]) -> np.ndarray:
    result = loaded({name: objects(values) for name, values in inputs.items()})
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    return result


@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
@pytest.mark.parametrize("normalize", [None, False, True])
def test_text_embeddings_equal_the_library(
    bert: str, pooling: str | None, normalize: bool | None
) -> None:
    vectors = embed(
        runtime("feature-extraction", bert, pooling=pooling, normalize=normalize), text=TEXTS
    )
    states = hidden_states(bert, TEXTS)
    expected = torch.stack([state[0] if pooling == "cls" else state.mean(0) for state in states])
    if normalize:
        expected = torch.nn.functional.normalize(expected, dim=1)
        assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < TOLERANCE
    assert np.abs(vectors - expected.numpy()).max() < TOLERANCE


@pytest.mark.parametrize("fields", [{}, {"maxTokensPerBatch": 64}, {"tooLong": "windows"}])
def test_tokens_of_texts_are_counted(bert: str, fields: dict[str, Any]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    texts = TEXTS[:4]
    expected = sum(len(ids) for ids in tokenizer(texts)["input_ids"])
    with collect_warnings() as warnings:
        runtime("feature-extraction", bert, **fields)({"text": objects(texts)})
    assert sum(tokens_in(warnings)["inputTokens"].values()) == expected


def test_a_text_gets_the_label_with_the_most_similar_embedding(bert: str) -> None:
    labels = ["hello there", "the dog", "numbers"]
    result = runtime("feature-extraction", bert, candidateLabels=labels)({"text": objects(TEXTS)})
    vectors, others = (
        torch.nn.functional.normalize(
            torch.from_numpy(embed(runtime("feature-extraction", bert), text=texts))
        )
        for texts in (TEXTS, labels)
    )
    best, indices = (vectors @ others.T).max(dim=1)
    assert result.field("label").to_pylist() == [labels[index] for index in indices.tolist()]
    np.testing.assert_allclose(result.field("score"), best, atol=TOLERANCE)


def test_text_classification_equals_the_library(bert: str) -> None:
    result = runtime("text-classification", bert)({"text": objects(TEXTS)})
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(bert).eval()
    for text, value in zip(TEXTS, result.to_pylist(), strict=True):
        tokens = tokenizer(text, return_tensors="pt", truncation=True)
        with torch.inference_mode():
            scores = model(**tokens).logits.softmax(dim=-1)[0]
        assert value["label"] == model.config.id2label[int(scores.argmax())]
        assert abs(value["score"] - float(scores.max())) < TOLERANCE
    assert len({round(value["score"], 4) for value in result.to_pylist()}) > 3


@pytest.mark.parametrize("model", ["vit", "resnet"])
def test_image_classification_equals_library(request: pytest.FixtureRequest, model: str) -> None:
    source = request.getfixturevalue(model)
    result = runtime("image-classification", source)({"image": objects(PHOTOS)})
    processor = transformers.AutoImageProcessor.from_pretrained(source)
    direct = transformers.AutoModelForImageClassification.from_pretrained(source).eval()
    with torch.inference_mode():
        scores = direct(**processor(images=PHOTOS, return_tensors="pt")).logits.softmax(dim=-1)
    for value, row in zip(result.to_pylist(), scores, strict=True):
        assert value["label"] == direct.config.id2label[int(row.argmax())]
        assert abs(value["score"] - float(row.max())) < TOLERANCE


def test_image_embeddings_equal_the_library(vit: str, resnet: str) -> None:
    for pooling in (None, "mean", "cls"):
        vectors = embed(runtime("image-feature-extraction", vit, pooling=pooling), image=PHOTOS)
        states = image_states(vit)
        expected = states[:, 0] if pooling == "cls" else states.mean(dim=1)
        assert np.abs(vectors - expected.numpy()).max() < TOLERANCE, pooling
    options = {"do_normalize": False}
    vectors = embed(runtime("image-feature-extraction", vit, options=options), image=PHOTOS)
    expected = image_states(vit, **options).mean(dim=1)
    assert np.abs(vectors - expected.numpy()).max() < TOLERANCE
    # embeddings of a convolutional model are means over height and width
    vectors = embed(runtime("image-feature-extraction", resnet, normalize=True), image=PHOTOS)
    expected = torch.nn.functional.normalize(image_states(resnet).mean(dim=(2, 3)), dim=1)
    assert vectors.shape == (3, 16)
    assert np.abs(vectors - expected.numpy()).max() < TOLERANCE


def test_images_may_be_one_tensor(vit: str) -> None:
    loaded = runtime("image-feature-extraction", vit)
    images = np.stack([np.full((20, 30, 3), value, np.uint8) for value in (0, 100, 255)])
    full = loaded({"image": images})
    assert np.abs(full - embed(loaded, image=list(images))).max() < TOLERANCE
    one_by_one = np.concatenate([loaded({"image": images[at : at + 1]}) for at in range(3)])
    assert np.abs(full - one_by_one).max() < TOLERANCE


def test_other_values_are_rejected(bert: str, vit: str, messages: Messages) -> None:
    embedder = runtime("feature-extraction", bert)
    for value in (None, 5, b"bytes", ["a"]):
        with pytest.raises(TypeError, match=f"expected text, got {type(value).__name__}"):
            embedder({"text": objects(["fine", value])})
    classifier = runtime("image-classification", vit)
    image = np.zeros((8, 8, 3), np.uint8)
    for value in (
        None,
        b"\x89PNG",
        "/etc/hostname",
        "http://localhost:1/image.png",
        np.zeros((8, 8), np.uint8),
    ):
        with messages.raises(TypeError):
            classifier({"image": objects([image, value])})


PHRASES = ["a cat", "a cup of coffee on a table", ""]


def towers(source: str, normalize: bool | None = None, **columns: list[Any]) -> np.ndarray:
    task = "feature-extraction" if "text" in columns else "image-feature-extraction"
    runtime = loaded(task, source, columns, normalize=normalize)
    result = runtime({name: column(values) for name, values in columns.items()})
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    return result


def features(source: str, **inputs: Any) -> np.ndarray:
    """Return the library's own embeddings, one row at a time."""
    model = transformers.AutoModel.from_pretrained(source).eval()
    if "text" in inputs:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        prepare, call, options = tokenizer, model.get_text_features, inputs["options"]
    else:
        processor = transformers.AutoImageProcessor.from_pretrained(source)
        prepare, call, options = processor, model.get_image_features, {}
    (rows,) = (inputs[name] for name in ("text", "image") if name in inputs)
    with torch.inference_mode():
        calls = [call(**prepare(row, return_tensors="pt", **options)) for row in rows]
    return torch.cat([output.pooler_output for output in calls]).numpy()


PADDED = {"padding": "max_length", "max_length": 64}


@pytest.mark.parametrize(("name", "width"), [("clip", 24), ("siglip", 32)])
@pytest.mark.parametrize("normalize", [None, True])
def test_texts_and_images_share_a_space(
    tiny: Callable[[str], str], name: str, width: int, normalize: bool | None
) -> None:
    source = tiny(name)
    options = PADDED if name == "siglip" else {}
    for result, expected in (
        (towers(source, normalize, text=PHRASES), features(source, text=PHRASES, options=options)),
        (towers(source, normalize, image=PHOTOS), features(source, image=PHOTOS)),
    ):
        lengths = np.linalg.norm(expected, axis=1, keepdims=True) if normalize else 1
        assert result.shape == (3, width)
        assert np.abs(result - expected / lengths).max() < TOLERANCE


def test_pooling_of_a_tower_is_rejected(tiny: Callable[[str], str]) -> None:
    with pytest.raises(ModelLoad, match=r"pooling: '.*clip.*' is a CLIPModel"):
        loaded("image-feature-extraction", tiny("clip"), ["image"], pooling="cls")


def test_model_without_image_tower_is_rejected(
    tiny: Callable[[str], str], messages: Messages
) -> None:
    with messages.raises(ModelLoad):
        loaded("image-feature-extraction", tiny("audio_text_model"), ["image"])


TASK_TEXTS = ["hello world", "the quick brown fox", "hello"]
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
        return pipeline(Image.fromarray(row[name]) if name == "image" else row[name], **options)

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


def timed(answer: Any) -> Any:
    chunks = [(chunk["text"], *chunk["timestamp"]) for chunk in answer["chunks"]]
    named = [{"text": text, "start": start, "end": end} for text, start, end in chunks]
    return {"text": answer["text"], "chunks": named}


IMAGES: dict[str, list[Any]] = {"image": photographs((50, 40), (64, 64), (50, 40))}
SOUNDS: dict[str, list[Any]] = {"audio": sounds()}
SAID: dict[str, list[Any]] = {"text": TASK_TEXTS}
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
    Case("image-segmentation", "segmenter", IMAGES, of("image"),
         lambda answers: [{**one, "mask": saved(one["mask"], "PNG")} for one in answers]),
    Case("object-detection", "object_detector", IMAGES, of("image", threshold=0.1),
         fields=options(threshold=0.1)),
    Case("text-classification", "regressor", {"text_pair": TASK_TEXTS[::-1], "text": TASK_TEXTS},
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
