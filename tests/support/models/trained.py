"""Small transformers classifiers that are trained in seconds until they know their examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

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


def text_classifier(folder: Path, texts: Sequence[str], names: Sequence[str]) -> None:
    """Write a model that returns the name of each text, and its tokenizer."""
    labels = sorted(set(names))
    tokenizer = _tokenizer(texts)
    config = hf.DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, n_layers=1, n_heads=2, hidden_dim=64,
        max_position_embeddings=64, id2label=dict(enumerate(labels)),
    )  # fmt: skip
    torch.manual_seed(0)
    model = hf.DistilBertForSequenceClassification(config)
    inputs = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
    _train(model, inputs, [labels.index(name) for name in names])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(texts: Sequence[str]) -> hf.PreTrainedTokenizerFast:
    """Return a tokenizer of lower-case words."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def _train(model: hf.PreTrainedModel, inputs: hf.BatchEncoding, labels: Sequence[int]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**inputs, labels=torch.tensor(labels)).loss.backward()
        optimizer.step()
    model.eval()
