"""The models of feed.py, which cost nothing, so that only their feed is measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from texts import MODEL

BATCHES = {"images": 64, "texts": 1024, "tokens": 1024}


class FirstPixels:
    """Returns one number for each image."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"number": batch["image"][:, 0, 0, 0]}


class Zeros:
    """Returns one number for each text."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"number": np.zeros(len(batch["text"]))}


def write_tiny_encoder(directory: Path) -> None:
    """Save an encoder without layers, which costs little, and the tokenizer of MiniLM. Of the
    encoders that take the tokens of BERT, YOSO makes no mask of texts x tokens x tokens, which
    would take longer than the tokenizer."""
    import torch
    import transformers

    shutil.copytree(MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    torch.manual_seed(0)
    config = transformers.YosoConfig(
        hidden_size=4,
        num_hidden_layers=0,
        num_attention_heads=1,
        intermediate_size=4,
        vocab_size=len(transformers.AutoTokenizer.from_pretrained(MODEL)),
        max_position_embeddings=512,
    )
    transformers.YosoModel(config).save_pretrained(directory)
