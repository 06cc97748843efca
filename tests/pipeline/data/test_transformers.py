"""Encoders of transformers: results equal the library's for any batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes import load_runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.transformers.encoders import EncoderRuntime
from batchinference.spec.models import TransformersModel
from plugins.messages import Messages
from support.models.run_transformers import objects, photographs
from support.outputs.row_warnings import tokens_in

TEXTS = [
    *("a", "hello", "the quick brown fox jumps over the lazy dog", "", "x" * 300, "übung 1, 2"),
    *("batch inference", "hello"),
]
TOLERANCE = 1e-5
PHOTOS = photographs((90, 60), (40, 50), (64, 64))


def runtime(task: str, source: str, **fields: Any) -> EncoderRuntime:
    kind = "image" if "image" in task else "text"
    model = TransformersModel.model_validate(
        {
            **{"runtime": "transformers", "task": task, "source": source},
            **{"inputs": {kind: "column"}, "output": "out", **fields},
        }
    )
    loaded = load_runtime(model, Device())
    assert isinstance(loaded, EncoderRuntime)
    return loaded


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
    found = embed(
        runtime("feature-extraction", bert, pooling=pooling, normalize=normalize), text=TEXTS
    )
    states = hidden_states(bert, TEXTS)
    expected = torch.stack([state[0] if pooling == "cls" else state.mean(0) for state in states])
    if normalize:
        expected = torch.nn.functional.normalize(expected, dim=1)
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < TOLERANCE
    assert np.abs(found - expected.numpy()).max() < TOLERANCE


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
    found = runtime("feature-extraction", bert, candidateLabels=labels)({"text": objects(TEXTS)})
    vectors, others = (
        torch.nn.functional.normalize(
            torch.from_numpy(embed(runtime("feature-extraction", bert), text=texts))
        )
        for texts in (TEXTS, labels)
    )
    best, indices = (vectors @ others.T).max(dim=1)
    assert found.field("label").to_pylist() == [labels[index] for index in indices.tolist()]
    np.testing.assert_allclose(found.field("score"), best, atol=TOLERANCE)


def test_text_classification_equals_the_library(bert: str) -> None:
    result = runtime("text-classification", bert)({"text": objects(TEXTS)})
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(bert).eval()
    for text, found in zip(TEXTS, result.to_pylist(), strict=True):
        tokens = tokenizer(text, return_tensors="pt", truncation=True)
        with torch.inference_mode():
            scores = model(**tokens).logits.softmax(dim=-1)[0]
        assert found["label"] == model.config.id2label[int(scores.argmax())]
        assert abs(found["score"] - float(scores.max())) < TOLERANCE
    assert len({round(found["score"], 4) for found in result.to_pylist()}) > 3


@pytest.mark.parametrize("model", ["vit", "resnet"])
def test_image_classification_equals_the_library(
    request: pytest.FixtureRequest, model: str
) -> None:
    source = request.getfixturevalue(model)
    result = runtime("image-classification", source)({"image": objects(PHOTOS)})
    processor = transformers.AutoImageProcessor.from_pretrained(source)
    direct = transformers.AutoModelForImageClassification.from_pretrained(source).eval()
    with torch.inference_mode():
        scores = direct(**processor(images=PHOTOS, return_tensors="pt")).logits.softmax(dim=-1)
    for found, row in zip(result.to_pylist(), scores, strict=True):
        assert found["label"] == direct.config.id2label[int(row.argmax())]
        assert abs(found["score"] - float(row.max())) < TOLERANCE


def test_image_embeddings_equal_the_library(vit: str, resnet: str) -> None:
    for pooling in (None, "mean", "cls"):
        found = embed(runtime("image-feature-extraction", vit, pooling=pooling), image=PHOTOS)
        states = image_states(vit)
        expected = states[:, 0] if pooling == "cls" else states.mean(dim=1)
        assert np.abs(found - expected.numpy()).max() < TOLERANCE, pooling
    options = {"do_normalize": False}
    found = embed(runtime("image-feature-extraction", vit, options=options), image=PHOTOS)
    expected = image_states(vit, **options).mean(dim=1)
    assert np.abs(found - expected.numpy()).max() < TOLERANCE
    # embeddings of a convolutional model are means over height and width
    found = embed(runtime("image-feature-extraction", resnet, normalize=True), image=PHOTOS)
    expected = torch.nn.functional.normalize(image_states(resnet).mean(dim=(2, 3)), dim=1)
    assert found.shape == (3, 16)
    assert np.abs(found - expected.numpy()).max() < TOLERANCE


def test_images_may_be_one_tensor(vit: str) -> None:
    loaded = runtime("image-feature-extraction", vit)
    images = np.stack([np.full((20, 30, 3), value, np.uint8) for value in (0, 100, 255)])
    whole = loaded({"image": images})
    assert np.abs(whole - embed(loaded, image=list(images))).max() < TOLERANCE
    one_by_one = np.concatenate([loaded({"image": images[at : at + 1]}) for at in range(3)])
    assert np.abs(whole - one_by_one).max() < TOLERANCE


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
