"""The runtime sentenceTransformers: embeddings equal those of the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.text_limits import TextTooLong
from plugins.messages import Messages
from support.models import tiny_transformers as tiny_models
from support.models.replicas import loaded
from support.models.run_transformers import objects
from support.outputs.row_warnings import run_with_warnings, tokens_in

TEXTS = ["A cat sits on the mat.", "Dogs bark.", "The stock market fell sharply today " * 5]
PHOTOS = [np.random.default_rng(side).integers(0, 256, (40, side, 3), dtype=np.uint8)
          for side in (40, 60)]  # fmt: skip


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a small model of texts and images, with random weights and a prompt."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    folder = tmp_path_factory.mktemp("clip")
    parts = [Transformer(tiny_models.write("clip", folder))]
    model = SentenceTransformer(modules=parts, device="cpu", prompts={"query": "search "})
    model.save(str(folder / "model"))
    return str(folder / "model")


def direct(source: str, rows: list[Any], **options: Any) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(source, device="cpu")
    return np.asarray(model.encode(rows, show_progress_bar=False, **options))


def runtime(source: str, kind: str = "text", **fields: Any) -> Runtime:
    return loaded("sentenceTransformers", (kind,), source=source, **fields)


@pytest.fixture(scope="module")
def model(minilm: str) -> Runtime:
    """Return the runtime of MiniLM."""
    return runtime(minilm)


def embedded(run: Runtime, rows: list[Any], kind: str = "text") -> np.ndarray:
    result = run({kind: objects(rows)})
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    return result


def test_embeddings_equal_the_library(minilm: str, model: Runtime) -> None:
    vectors = embedded(model, TEXTS)
    assert vectors.shape == (3, 384)
    assert np.abs(vectors - direct(minilm, TEXTS)).max() < 1e-6
    alone = np.concatenate([embedded(model, [text]) for text in TEXTS])
    assert np.abs(vectors - alone).max() < 1e-5


def test_fields_equal_library_options(clip: str) -> None:
    plain = direct(clip, ["cat", "dog"])
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"truncateDim": 8}, {"truncate_dim": 8}),
        ({"normalize": True}, {"normalize_embeddings": True}),
        ({"truncateDim": 8, "normalize": True}, {"truncate_dim": 8, "normalize_embeddings": True}),
        ({"prompt": "search "}, {"prompt": "search "}),
        ({"promptName": "query"}, {"prompt_name": "query"}),
    ]
    for fields, options in cases:
        expected = direct(clip, ["cat", "dog"], **options)
        assert plain.shape != expected.shape or np.abs(plain - expected).max() > 1e-3, fields
        vectors = embedded(runtime(clip, **fields), ["cat", "dog"])
        assert np.abs(vectors - expected).max() < 1e-6, fields
        if len(fields) == 2:
            assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-6)


def test_images_and_texts_share_a_space(clip: str) -> None:
    images = embedded(runtime(clip, "image"), PHOTOS, "image")
    texts = embedded(runtime(clip), ["cat", "dog"])
    assert images.shape == texts.shape == (2, 24)
    expected = direct(clip, [Image.fromarray(photo) for photo in PHOTOS])
    assert np.abs(images - expected).max() < 1e-6
    assert np.abs(texts - direct(clip, ["cat", "dog"])).max() < 1e-6


def test_text_is_never_an_image_address(clip: str) -> None:
    texts = ["http://127.0.0.1:9/cat.png", "cat.png", "/etc/passwd.png", "dog"]
    vectors = embedded(runtime(clip), texts)
    assert np.abs(vectors - direct(clip, [{"text": text} for text in texts])).max() < 1e-6


def test_other_values_are_rejected(model: Runtime, clip: str, messages: Messages) -> None:
    for value in (None, 5, b"bytes"):
        with pytest.raises(TypeError, match=f"expected text, got {type(value).__name__}"):
            model({"text": objects(["a", value])})
    with messages.raises(TypeError):
        runtime(clip, "image")({"image": objects([PHOTOS[0], "cat.png"])})


LONG = "search " + "word " * 300
LIMIT = 256
"""The maximum number of tokens of MiniLM."""


def embedded_with_warnings(source: str, texts: list[str], **fields: Any) -> Any:
    results, warnings = run_with_warnings(runtime(source, **fields), {"text": texts})
    return np.array(results), warnings


def test_cut_tokens_are_counted(minilm: str, messages: Messages) -> None:
    for fields, cut in (
        ({}, 303 - LIMIT),
        ({"tooLong": "truncateLeft"}, 303 - LIMIT),
        ({"prompt": "find it: "}, 306 - LIMIT),
    ):
        result, warnings = embedded_with_warnings(minilm, ["a", LONG], **fields)
        assert warnings == [(1, "TextCut", cut)], fields
        assert result.shape == (2, 384)
    with messages.raises(TextTooLong):
        embedded_with_warnings(minilm, ["a", LONG], tooLong="fail")


def test_tokens_of_texts_are_counted(minilm: str) -> None:
    for fields, cut in (({}, LIMIT), ({"tooLong": "windows", "windowOverlap": 0}, 303 + 2)):
        loaded = runtime(minilm, **fields)
        with collect_warnings() as warnings:
            loaded({"text": objects(["a", LONG])})
        assert sum(tokens_in(warnings)["inputTokens"].values()) == 3 + cut, fields


def test_windows_are_averaged_by_their_tokens(minilm: str) -> None:
    words = [f"{word} " for word in ["one", "two"] * 150]
    fields = {"tooLong": "windows", "windowOverlap": 0}
    result, warnings = embedded_with_warnings(minilm, ["a", "".join(words)], **fields)
    parts = direct(minilm, ["".join(words[:254]), "".join(words[254:])])
    mean = np.average(parts, axis=0, weights=[254, 46])
    assert warnings == []
    assert np.abs(result[1] - mean / np.linalg.norm(mean)).max() < 1e-5
    assert np.abs(result[0] - direct(minilm, ["a"])).max() < 1e-5


def saved(folder: Path, *modules: Any) -> str:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=list(modules), device="cpu").save(str(folder))
    return str(folder)


def test_limit_that_cannot_be_checked_is_rejected(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    def words(name: str, **fields: int) -> str:
        vectors = np.eye(4, dtype=np.float32)
        table = WordEmbeddings(WhitespaceTokenizer(list("abcd")), vectors, **fields)
        return saved(tmp_path / name, table, Pooling(4))

    assert embedded(runtime(words("unlimited")), ["b c"]).tolist() == [[0, 0.5, 0.5, 0]]
    with pytest.raises(ModelLoad, match="cuts texts after 20 tokens"):
        runtime(words("limited", max_seq_length=20))


def test_unsupported_fields_are_rejected_at_load(
    minilm: str, clip: str, messages: Messages
) -> None:
    with pytest.raises(ModelLoad, match="takes text, not image"):
        runtime(minilm, "image")
    with pytest.raises(
        ModelLoad, match=r"promptName: .* has no prompt 'passage', only query, document"
    ):
        runtime(clip, promptName="passage")
    with messages.raises(ModelLoad):
        runtime(minilm, prompt="find it: ", tooLong="truncateLeft")
    with messages.raises(ModelLoad):
        runtime("/nowhere/model")
