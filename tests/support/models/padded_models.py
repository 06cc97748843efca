"""Tiny models whose results could depend on the padding of a batch, with seeded random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from support.models.tiny_transformers import CHARACTERS, characters

_VOCABULARY = {"vocab_size": len(CHARACTERS)}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
_HEADS = {"num_attention_heads": 2}
_GPT = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "eos_token_id": 3}
_PAD = {"pad_token": "<pad>"}


def _gpt(**fields: Any) -> hf.GPT2Config:
    return hf.GPT2Config(**_GPT, **_VOCABULARY, **fields)


def _llama(**fields: Any) -> hf.LlamaConfig:
    return hf.LlamaConfig(**_SMALL, **_HEADS, **_VOCABULARY, max_position_embeddings=64, **fields)


def _xlnet() -> hf.XLNetConfig:
    sizes = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
    return hf.XLNetConfig(**sizes, **_VOCABULARY, num_labels=3, pad_token_id=0)


def _roberta() -> hf.RobertaConfig:
    limits = {"max_position_embeddings": 66, "pad_token_id": 1}
    return hf.RobertaConfig(**_SMALL, **_HEADS, **_VOCABULARY, **limits)


Case = tuple[str, Callable[[], Any], dict[str, Any]]
TEXT_MODELS: dict[str, Case] = {
    "gpt without padding": (
        "text-classification", lambda: hf.GPT2ForSequenceClassification(_gpt(num_labels=3)), {},
    ),
    "gpt with an invalid padding token": (
        "text-classification",
        lambda: hf.GPT2ForSequenceClassification(_gpt(num_labels=3, pad_token_id=-1)), {},
    ),
    "gpt with two padding tokens": (
        "text-classification",
        lambda: hf.GPT2ForSequenceClassification(_gpt(num_labels=3, pad_token_id=3)), _PAD,
    ),
    "gpt embeddings": ("feature-extraction", lambda: hf.GPT2Model(_gpt()), {}),
    "gpt tokens": (
        "token-classification", lambda: hf.GPT2ForTokenClassification(_gpt(num_labels=3)), _PAD,
    ),
    "llama classes": (
        "text-classification", lambda: hf.LlamaForSequenceClassification(_llama(num_labels=3)), {},
    ),
    "llama embeddings": ("feature-extraction", lambda: hf.LlamaModel(_llama()), {}),
    "xlnet classes": (
        "text-classification", lambda: hf.XLNetForSequenceClassification(_xlnet()), _PAD,
    ),
    "fnet embeddings": (
        "feature-extraction", lambda: hf.FNetModel(
            hf.FNetConfig(**_SMALL, **_VOCABULARY, max_position_embeddings=64)),
        {**_PAD, "model_input_names": ["input_ids"]},
    ),
    "roberta embeddings": (
        "feature-extraction", lambda: hf.RobertaModel(_roberta()), {"pad_token": "<unk>"},
    ),
    "mamba embeddings": (
        "feature-extraction",
        lambda: hf.MambaModel(
            hf.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **_VOCABULARY)
        ),
        _PAD,
    ),
}  # fmt: skip
"""The task of each model, the model, and the fields of its tokenizer."""


def write_text_model(name: str, folder: Path, padding_side: str) -> tuple[str, str]:
    """Write a model, and return its task and its folder."""
    task, make, fields = TEXT_MODELS[name]
    _save(make(), folder)
    characters(padding_side=padding_side, **fields).save_pretrained(folder)
    return task, str(folder)


def _save(model: Any, folder: Path) -> None:
    """Save a model with weights that let its results depend on its input."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights.normal_(0, 0.3)
    model.save_pretrained(folder)


def write_wave_classifier(folder: Path, norm: str, *, mask: bool) -> str:
    """Write an audio classifier for 1 kHz, whose extractor returns an attention mask or not."""
    config = hf.Wav2Vec2Config(
        **_SMALL, **_HEADS, vocab_size=32, conv_dim=[16, 16], conv_stride=[8, 8],
        conv_kernel=[16, 16], num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        feat_extract_norm=norm, num_labels=3, classifier_proj_size=16,
    )  # fmt: skip
    hf.Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)
    extractor = hf.Wav2Vec2FeatureExtractor(sampling_rate=1000, return_attention_mask=mask)
    extractor.save_pretrained(folder)
    return str(folder)
