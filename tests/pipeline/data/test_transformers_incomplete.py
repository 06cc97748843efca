"""Incomplete model folders end the job instead of giving random results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers as hf

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.transformers import loading
from plugins.messages import Messages
from support.models.run_transformers import loaded, run

Tiny = Callable[[str], str]
TEXTS = ["a cat", "the quick brown fox"]


@pytest.fixture
def body(bert: str, tmp_path: Path) -> str:
    """Return the folder of the text model without its head and pooler."""
    shutil.copytree(bert, tmp_path / "body")
    hf.BertModel.from_pretrained(bert, add_pooling_layer=False).save_pretrained(tmp_path / "body")
    return str(tmp_path / "body")


@pytest.mark.parametrize(
    "task",
    [
        "text-classification",
        "token-classification",
        "fill-mask",
        "zero-shot-classification",
        "text-generation",
    ],
)
def test_model_without_the_head_of_its_task_is_rejected(
    body: str, task: str, messages: Messages
) -> None:
    fields = {"candidateLabels": ["a", "b"]} if task.startswith("zero") else {}
    with messages.raises(ModelLoad):
        loaded(task, body, ["text"], **fields)


def test_embeddings_need_no_pooler(bert: str, body: str, vit: str) -> None:
    whole = run(loaded("feature-extraction", bert, ["text"]), {"text": TEXTS})
    without = run(loaded("feature-extraction", body, ["text"]), {"text": TEXTS})
    assert np.abs(np.array(whole) - np.array(without)).max() < 1e-5
    assert loaded("image-feature-extraction", vit, ["image"])  # this model has no pooler


@pytest.mark.parametrize("task", ["feature-extraction", "token-classification", "text-generation"])
def test_adapter_error_names_its_base_model(
    bert: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    config = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").touch()
    with messages.raises(ModelLoad):
        loaded(task, str(tmp_path), ["text"])
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    with messages.raises(ModelLoad):
        loaded(task, str(tmp_path), ["text"])
    if task == "feature-extraction":
        (tmp_path / "adapter_config.json").write_text("{}")
        monkeypatch.setattr(loading, "is_peft_available", lambda: True)
        assert loaded(task, str(tmp_path), ["text"])


def test_weights_for_training_may_be_missing(tiny: Tiny, tmp_path: Path) -> None:
    shutil.copytree(tiny("speech_recognizer"), tmp_path / "ctc")
    model = hf.Wav2Vec2ForCTC.from_pretrained(tmp_path / "ctc")
    state = model.state_dict()
    del state["wav2vec2.masked_spec_embed"]
    model.save_pretrained(tmp_path / "ctc", state_dict=state)
    runtime = loaded("automatic-speech-recognition", str(tmp_path / "ctc"), ["audio"])
    assert len(run(runtime, {"audio": [np.zeros(400, np.float32)]})) == 1


@pytest.mark.parametrize("task", ["feature-extraction", "token-classification", "text-generation"])
def test_model_without_tokenizer_files_is_rejected(
    task: str, tmp_path: Path, messages: Messages
) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.BertConfig(**small, intermediate_size=32, vocab_size=200, is_decoder=True)
    kinds = {
        "feature-extraction": hf.BertModel,
        "token-classification": hf.BertForTokenClassification,
        "text-generation": hf.BertLMHeadModel,
    }
    kinds[task](config).save_pretrained(tmp_path)
    with messages.raises(ModelLoad):
        loaded(task, str(tmp_path), ["text"])


def test_model_of_another_task_is_refused(tiny: Tiny, messages: Messages) -> None:
    with messages.raises(ModelLoad):
        loaded("text-classification", tiny("object_detector"), ["text"])
