"""Options of transformers models: a misspelt name ends the job before any row."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers as hf

from batchinference.pipeline.errors import ModelLoad
from support.documents.minimal import Document
from support.models.run_transformers import loaded

Tiny = Callable[[str], str]
LABELS = {"candidateLabels": ["a", "b"]}
SEEN: Document = {"prompt": "what?", "images": ["image"]}


@pytest.fixture
def writer_of_speech(tiny: Tiny, tmp_path: Path) -> str:
    """Return the folder of a model that transcribes speech token by token."""
    shutil.copytree(tiny("text_model"), tmp_path / "whisper")
    small = {"d_model": 16, "num_mel_bins": 8, "max_source_positions": 10, "vocab_size": 40}
    layers = {f"{side}_layers": 1 for side in ("encoder", "decoder")}
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.WhisperConfig(**small, **layers, **heads, **tokens, decoder_start_token_id=1)
    hf.WhisperForConditionalGeneration(config).save_pretrained(tmp_path / "whisper")
    hf.WhisperFeatureExtractor(feature_size=8).save_pretrained(tmp_path / "whisper")
    return str(tmp_path / "whisper")


def refused(wrong: str, right: str) -> str:
    return re.escape(f"has no option '{wrong}' here; did you mean '{right}'?")


MISSPELT: list[tuple[str, str, str, str, Document]] = [
    ("text-classification", "regressor", "max_lenght", "max_length", {}),
    ("text-generation", "chat_model", "add_special_token", "add_special_tokens", {}),
    ("image-text-to-text", "vision_chat", "do_resiz", "do_resize", SEEN),
    ("audio-classification", "audio_classifier", "truncaton", "truncation", {}),
    ("video-classification", "video_classifier", "do_normalise", "do_normalize", {}),
    ("token-classification", "token_classifier", "agregation_strategy", "aggregation_strategy", {}),
    ("image-segmentation", "segmenter", "treshold", "threshold", {}),
    ("zero-shot-classification", "entailment_model", "multi_labels", "multi_label", LABELS),
]


@pytest.mark.parametrize(
    ("task", "model", "wrong", "right", "fields"), MISSPELT, ids=[case[0] for case in MISSPELT]
)
def test_misspelt_option_error_names_the_nearest(
    task: str, model: str, wrong: str, right: str, fields: Document, tiny: Tiny
) -> None:
    column = task.partition("-")[0]
    inputs = [column if column in ("audio", "video", "image") else "text"]
    with pytest.raises(ModelLoad, match=refused(wrong, right)):
        loaded(task, tiny(model), inputs, options={wrong: 1}, **fields)


def test_generating_task_takes_generation_options(writer_of_speech: str) -> None:
    task = "automatic-speech-recognition"
    with pytest.raises(ModelLoad, match=refused("max_new_token", "max_new_tokens")):
        loaded(task, writer_of_speech, ["audio"], options={"max_new_token": 4})
    options = {"max_new_tokens": 4, "return_timestamps": True, "language": "en", "num_beams": 2}
    assert loaded(task, writer_of_speech, ["audio"], options=options)
