"""Small transformers models that are trained in seconds until they know their examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers as hf
from PIL import Image

STEPS, LEARNING_RATE = 80, 3e-3
_SIZE = {"height": 32, "width": 32}


def image_classifier(folder: Path, images: Sequence[Image.Image], names: Sequence[str]) -> None:
    """Write a model that returns the name of each image, and its image processor."""
    labels = sorted(set(names))
    processor = hf.ViTImageProcessor(size=_SIZE)
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, id2label=dict(enumerate(labels)),
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.ViTForImageClassification(config)
    _train(model, processor(images, return_tensors="pt"), [labels.index(name) for name in names])
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def _train(model: hf.PreTrainedModel, inputs: hf.BatchEncoding, labels: Sequence[int]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**inputs, labels=torch.tensor(labels)).loss.backward()
        optimizer.step()
    model.eval()
