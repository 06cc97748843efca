"""Models of sentence-transformers: the embeddings of a direct call of the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.runtimes import Runtime
from support import tiny_models
from support.models import loaded

TEXTS = ["A cat sits on the mat.", "Dogs bark.", "The stock market fell sharply today " * 5]
PHOTOS = [np.random.default_rng(side).integers(0, 256, (40, side, 3), dtype=np.uint8)
          for side in (40, 60)]  # fmt: skip


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small model of texts and images, with random weights and a prompt."""
    folder = tmp_path_factory.mktemp("clip")
    parts = [Transformer(tiny_models.write("clip", folder))]
    model = SentenceTransformer(modules=parts, device="cpu", prompts={"query": "search "})
    model.save(str(folder / "model"))
    return str(folder / "model")


def direct(source: str, rows: list[Any], **options: Any) -> np.ndarray:
    model = SentenceTransformer(source, device="cpu")
    return np.asarray(model.encode(rows, show_progress_bar=False, **options))


def runtime(source: str, kind: str = "text", **fields: Any) -> Runtime:
    return loaded("sentenceTransformers", (kind,), source=source, **fields)


def column(rows: list[Any]) -> np.ndarray:
    values = np.empty(len(rows), dtype=object)
    values[:] = rows
    return values


def embedded(run: Runtime, rows: list[Any], kind: str = "text") -> np.ndarray:
    found = run({kind: column(rows)})
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    return found


def test_embeddings_are_those_of_the_library(minilm: str) -> None:
    found = embedded(runtime(minilm), TEXTS)
    assert found.shape == (3, 384)
    assert np.abs(found - direct(minilm, TEXTS)).max() < 1e-6


def test_like_meanings_lie_close(minilm: str) -> None:
    near, far = "A kitten rests on a rug.", "Interest rates rose."
    cat, kitten, rates = embedded(runtime(minilm, normalize=True), [TEXTS[0], near, far])
    assert cat @ kitten > 0.5
    assert cat @ rates < 0.2


def test_embeddings_do_not_depend_on_the_batch(minilm: str) -> None:
    run = runtime(minilm)
    alone = np.concatenate([embedded(run, [text]) for text in TEXTS])
    assert np.abs(embedded(run, TEXTS) - alone).max() < 1e-5


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"truncateDim": 8}, {"truncate_dim": 8}),
        ({"normalize": True}, {"normalize_embeddings": True}),
        ({"truncateDim": 8, "normalize": True}, {"truncate_dim": 8, "normalize_embeddings": True}),
        ({"prompt": "search "}, {"prompt": "search "}),
        ({"promptName": "query"}, {"prompt_name": "query"}),
    ],
    ids=["truncated", "normalized", "both", "prompt", "named prompt"],
)
def test_fields_are_the_options_of_the_library(
    clip: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    plain = direct(clip, ["cat", "dog"])
    expected = direct(clip, ["cat", "dog"], **options)
    assert plain.shape != expected.shape or np.abs(plain - expected).max() > 1e-3
    assert np.abs(embedded(runtime(clip, **fields), ["cat", "dog"]) - expected).max() < 1e-6


def test_truncated_embeddings_have_length_one_when_normalized(clip: str) -> None:
    found = embedded(runtime(clip, truncateDim=8, normalize=True), ["cat", "dog"])
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1], abs=1e-6)


def test_images_and_texts_have_embeddings_in_one_space(clip: str) -> None:
    images = embedded(runtime(clip, "image"), PHOTOS, "image")
    texts = embedded(runtime(clip), ["cat", "dog"])
    assert images.shape == texts.shape == (2, 24)
    expected = direct(clip, [Image.fromarray(photo) for photo in PHOTOS])
    assert np.abs(images - expected).max() < 1e-6
    assert np.abs(texts - direct(clip, ["cat", "dog"])).max() < 1e-6


@pytest.mark.parametrize("text", ["http://127.0.0.1:9/cat.png", "cat.png", "/etc/passwd.png"])
def test_a_text_is_never_taken_for_the_address_of_an_image(clip: str, text: str) -> None:
    found = embedded(runtime(clip), [text, "dog"])
    assert np.abs(found - direct(clip, [{"text": text}, {"text": "dog"}])).max() < 1e-6


def test_half_of_the_bits_give_nearly_the_same(minilm: str) -> None:
    exact, rough = (embedded(runtime(minilm, dtype=dtype), TEXTS)
                    for dtype in ("float32", "bfloat16"))  # fmt: skip
    assert 0 < np.abs(exact - rough).max() < 0.02


@pytest.mark.parametrize("value", [None, 5, b"bytes"])
def test_what_is_no_text_is_refused(minilm: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"expected text, got {type(value).__name__}"):
        runtime(minilm)({"text": column(["a", value])})


def test_what_is_no_image_is_refused(clip: str) -> None:
    with pytest.raises(TypeError, match="expected an image, got str"):
        runtime(clip, "image")({"image": column([PHOTOS[0], "cat.png"])})


def test_what_the_model_does_not_have_is_told_when_it_is_loaded(minilm: str, clip: str) -> None:
    with pytest.raises(ModelLoad, match="takes text, not image"):
        runtime(minilm, "image")
    with pytest.raises(ModelLoad, match="has no prompt 'passage': it has query, document"):
        runtime(clip, promptName="passage")
    with pytest.raises(ModelLoad, match="'/nowhere/model' not found: there is no /nowhere/model"):
        runtime("/nowhere/model")
