"""The result of a row is the same alone and in any batch, in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from support.models import padded_models
from support.models.run_transformers import alike, loaded, run
from support.outputs.row_warnings import run_with_warnings

TEXTS = ["a", "hello", "the quick brown fox jumps over", "x" * 40, "hello", "zz <eos>", "b" * 63]


def assert_same_in_batches(runtime: Any, columns: dict[str, list[Any]]) -> list[Any]:
    """Return the results of single rows, which batches of several sizes have, too."""
    rows = len(next(iter(columns.values())))

    def results(size: int) -> list[Any]:
        parts = ({name: values[at : at + size] for name, values in columns.items()}
                 for at in range(0, rows, size))  # fmt: skip
        return [result for part in parts for result in run(runtime, part)]

    alone = results(1)
    for size in (2, 3, rows):
        for row, (result, expected) in enumerate(zip(results(size), alone, strict=True)):
            assert alike(result, expected, 2e-4), (size, row)
    return alone


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", padded_models.TEXT_MODELS)
def test_texts(name: str, side: str, tmp_path: Path) -> None:
    task, source = padded_models.write_text_model(name, tmp_path, side)
    alone = assert_same_in_batches(loaded(task, source, ["text"]), {"text": TEXTS})
    budget = loaded(task, source, ["text"], maxTokensPerBatch=80)
    assert alike(run(budget, {"text": TEXTS}), alone, 2e-4)
    if task == "feature-extraction":
        assert_same_in_batches(loaded(task, source, ["text"], pooling="cls"), {"text": TEXTS})


@pytest.mark.parametrize("options", [{}, {"padding": "max_length", "max_length": 64}])
@pytest.mark.parametrize("name", ["gpt without padding", "gpt with an invalid padding token"])
def test_model_without_padding_token_classifies_the_last_token(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    task, source = padded_models.write_text_model(name, tmp_path, "right")
    tokenizer = hf.AutoTokenizer.from_pretrained(source)
    model = hf.AutoModelForSequenceClassification.from_pretrained(source).eval()
    expected = []
    for text in TEXTS:
        with torch.inference_mode():
            logits = model(**tokenizer(text, return_tensors="pt")).logits
        expected.append(float(logits.softmax(dim=-1).max()))
    result = run(loaded(task, source, ["text"], options=options), {"text": TEXTS})
    assert [one["score"] for one in result] == pytest.approx(expected, abs=1e-5)


def sine(seconds: float, rate: int, channels: int = 1) -> np.ndarray:
    times = np.arange(int(seconds * rate)) / rate
    wave = (np.sin(2 * np.pi * (220 + 40 * np.sin(times)) * times) / 2).astype(np.float32)
    return wave if channels == 1 else np.stack([wave, wave / 2])


@pytest.mark.parametrize("timestamps", [None, True, "word"])
def test_speech_below_and_above_the_window_of_a_model(
    tiny: Callable[[str], str], timestamps: Any
) -> None:
    kinds = [(0.01, 8000, 1), (0.2, 16000, 2), (0.99, 44100, 1), (1.1, 8000, 1), (1.1, 16000, 1)]
    columns = {
        "audio": [sine(*kind) for kind in kinds],
        "sampling_rate": [rate for _, rate, _ in kinds],
    }
    options = {"return_timestamps": timestamps} if timestamps else {}
    task = "automatic-speech-recognition"
    runtime = loaded(task, tiny("whisper"), list(columns), options=options)
    same = assert_same_in_batches(runtime, columns)
    texts = [one["text"] if timestamps else one for one in same]
    assert len(set(texts)) > 1


@pytest.mark.parametrize(("norm", "mask"), [("group", False), ("layer", False), ("layer", True)])
def test_recordings_of_different_lengths(tmp_path: Path, norm: str, mask: bool) -> None:
    source = padded_models.write_wave_classifier(tmp_path, norm, mask=mask)
    waves = [sine(seconds, 1000) for seconds in (0.5, 1, 0.3, 1, 2)]
    assert_same_in_batches(loaded("audio-classification", source, ["audio"]), {"audio": waves})


def test_cropped_recordings(tiny: Callable[[str], str]) -> None:
    fields = {"candidateLabels": ["a", "b"], "topK": 2}
    task, source = "zero-shot-audio-classification", tiny("audio_text_model")
    columns = {"audio": [sine(seconds, 1000) for seconds in (1, 3, 5.5)]}
    runtime = loaded(task, source, ["audio"], **fields)
    assert_same_in_batches(runtime, columns)
    assert run_with_warnings(runtime, columns)[1] == [(1, "AudioCut", 1), (2, "AudioCut", 4)]
