"""Texts to token tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from batchinference.pipeline.runtimes.transformers.buckets import buckets, padded
from batchinference.pipeline.runtimes.transformers.loading import take_loading
from batchinference.spec.models import TransformersModel


class Tokens:
    """Tokenizes the texts of a batch, and pads those that are computed together.

    `options` are those that a model or task asks for; the user's own come before them.
    """

    def __init__(self, tokenizer: Any, model: TransformersModel, **options: Any) -> None:
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self._tokenizer = tokenizer
        self._options = {"truncation": True, **options, **model.options}
        take_loading(self._options)  # there is one implementation of tokenizers
        self._to_the_full = self._options.pop("padding", True) == "max_length"
        self._most_tokens = model.max_tokens_per_batch
        self._multiple = model.pad_to_multiple_of

    def batches(self, *texts: Sequence[str], **more: Any) -> Iterator[tuple[np.ndarray, Any]]:
        """Groups of rows, by their numbers, with their tensors of rows x tokens. A second list of
        texts is of pairs to the first."""
        encoded = self._tokenizer(*map(list, texts), **{**self._options, **more})
        if self._to_the_full:
            full = self._options.get("max_length") or self._tokenizer.model_max_length
            lengths = [full] * len(encoded["input_ids"])
        else:
            lengths = [len(ids) for ids in encoded["input_ids"]]
        limit = self._tokenizer.model_max_length
        for rows in buckets(lengths, self._most_tokens, self._multiple, limit):
            width = padded(max(lengths[row] for row in rows), self._multiple, limit)
            chosen = {name: [values[row] for row in rows] for name, values in encoded.items()}
            yield (
                rows,
                self._tokenizer.pad(
                    chosen, padding="max_length", max_length=width, return_tensors="pt"
                ),
            )
