"""Loading of transformers models: dtypes, attention, devices, revisions, options, missing files."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers as hf

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.transformers import loading
from batchinference.pipeline.runtimes.transformers.loading import device_map_of
from plugins.messages import Messages
from support.documents.minimal import Document
from support.models import replicas
from support.models.hub_cache import add_to_hub_cache
from support.models.run_transformers import alike, loaded, run

Tiny = Callable[[str], str]
TEXTS = ["hello", "the quick brown fox"]
RUNS: dict[str, tuple[str, Document]] = {
    "feature-extraction": ("bert", {}),
    "token-classification": ("token_classifier", {}),
    "text-generation": ("text_model", {"sampling": {"max_new_tokens": 4}}),
}
"""Tasks, one for each way of running a model, with a model and fields."""


@pytest.fixture(params=RUNS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(task: str, bert: str, tiny: Tiny) -> str:
    name = RUNS[task][0]
    return bert if name == "bert" else tiny(name)


def model_of(runtime: Any) -> Any:
    return runtime._pipeline.model if hasattr(runtime, "_pipeline") else runtime._model


def made(task: str, source: str, device: Device | None = None, **fields: Any) -> Any:
    return loaded(task, source, ["text"], device, **{**RUNS[task][1], **fields})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_the_models_dtype(task: str, source: str, dtype: str) -> None:
    runtime = made(task, source, dtype=dtype)
    assert model_of(runtime).dtype == getattr(torch, dtype)
    assert len(run(runtime, {"text": TEXTS})) == 2


def test_results_of_bfloat16_are_float32(bert: str, vit: str) -> None:
    half = loaded("feature-extraction", bert, ["text"], dtype="bfloat16")
    result = half({"text": np.array(TEXTS, object)})
    assert result.dtype == np.float32
    full = loaded("feature-extraction", bert, ["text"])({"text": np.array(TEXTS, object)})
    assert 0 < np.abs(result - full).max() < 0.1
    seen = loaded("image-classification", vit, ["image"], dtype="bfloat16")
    assert seen({"image": np.zeros((2, 32, 32, 3), np.uint8)}).field("score").type == "float"


@pytest.mark.parametrize("dtype", [None, "auto"])
def test_default_dtype_is_that_of_the_files(bert: str, tmp_path: Path, dtype: str | None) -> None:
    from transformers import AutoModel

    shutil.copytree(bert, tmp_path / "half")
    AutoModel.from_pretrained(bert).to(torch.float16).save_pretrained(tmp_path / "half")
    runtime = loaded("feature-extraction", str(tmp_path / "half"), ["text"], dtype=dtype)
    assert model_of(runtime).dtype == torch.float16


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_is_selected(task: str, source: str, attention: str) -> None:
    runtime = made(task, source, attention=attention)
    assert model_of(runtime).config._attn_implementation == attention
    expected = run(made(task, source), {"text": TEXTS})
    assert alike(run(runtime, {"text": TEXTS}), expected)


def test_device_map_follows_devices_and_strategy() -> None:
    fields = {"task": "feature-extraction", "source": "a"}
    for count, strategy, expected in (
        (1, None, None),
        (2, None, "auto"),
        (4, "balanced", "balanced"),
        (1, "auto", "auto"),
    ):
        model: Any = replicas.model_of("transformers", ("text",), **fields, deviceMap=strategy)
        assert device_map_of(model, Device("cuda", count=count)) == expected, (count, strategy)


@pytest.mark.usefixtures("counted_gpus")
def test_several_devices_need_accelerate(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ModelLoad, match=r"needs the package accelerate: pip install './jobs"):
        loaded("feature-extraction", bert, ["text"], Device("cuda", count=2))


def test_sharded_model_gives_the_same_results(
    task: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last layer stays on disk, which simulates a second device."""
    full = made(task, source)
    parts = {
        name: "disk" if "layer.1." in name or "layers.1." in name else "cpu"
        for name, module in model_of(full).named_modules()
        if not list(module.children())
    }
    monkeypatch.setattr(loading, "device_map_of", lambda model, device: parts)
    spread = made(task, source)
    assert set(model_of(spread).hf_device_map.values()) == {"cpu", "disk"}
    assert alike(run(spread, {"text": TEXTS}), run(full, {"text": TEXTS}))


def test_revision_of_the_hub_is_loaded(
    task: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    add_to_hub_cache(tmp_path, "org/model", "v2", Path(source))
    runtime = made(task, "org/model", revision="v2")
    assert alike(run(runtime, {"text": TEXTS}), run(made(task, source), {"text": TEXTS}))
    with pytest.raises(OSError, match="couldn't find them in the cached files"):
        made(task, "org/model", revision="v3")


def test_options_select_the_image_processor(vit: str, tiny: Tiny) -> None:
    cases: tuple[tuple[Document, bool], ...] = (
        ({"backend": "pil"}, True),
        ({"backend": "torchvision"}, False),
        ({"use_fast": False}, True),
        ({"use_fast": True}, False),
    )
    for options, pil in cases:
        encoder = loaded("image-classification", vit, ["image"], options=options)
        pipeline = loaded("image-segmentation", tiny("segmenter"), ["image"], options=options)
        for processor in (encoder._prepare._processor, pipeline._pipeline.image_processor):
            assert type(processor).__name__.endswith("Pil") == pil, options
        for runtime in (encoder, pipeline):
            assert len(run(runtime, {"image": [np.zeros((40, 50, 3), np.uint8)]})) == 1


def test_model_with_custom_code_is_refused_without_a_prompt(
    task: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "y")
    folder, marker = tmp_path / "model", tmp_path / "marker"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    code = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "evil.Evil")
    config |= {"model_type": "evil", "auto_map": code}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(ValueError, match="contains custom code"):
        made(task, str(folder))
    assert not marker.exists()


LABELS = {"candidateLabels": ["a", "b"]}
SEEN: Document = {"prompt": "what?", "images": ["image"]}


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
def test_error_of_a_misspelt_option_suggests_the_nearest(
    task: str, model: str, wrong: str, right: str, fields: Document, tiny: Tiny
) -> None:
    column = task.partition("-")[0]
    inputs = [column if column in ("audio", "video", "image") else "text"]
    with pytest.raises(ModelLoad, match=refused(wrong, right)):
        loaded(task, tiny(model), inputs, options={wrong: 1}, **fields)


def test_generating_task_takes_generation_options(tiny: Tiny) -> None:
    task, source = "automatic-speech-recognition", tiny("whisper")
    with pytest.raises(ModelLoad, match=refused("max_new_token", "max_new_tokens")):
        loaded(task, source, ["audio"], options={"max_new_token": 4})
    options = {"max_new_tokens": 4, "return_timestamps": True, "language": "en", "num_beams": 2}
    assert loaded(task, source, ["audio"], options=options)


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
    result = run(loaded("feature-extraction", bert, ["text"]), {"text": TEXTS})
    without = run(loaded("feature-extraction", body, ["text"]), {"text": TEXTS})
    assert np.abs(np.array(result) - np.array(without)).max() < 1e-5
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
