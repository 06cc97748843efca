"""Converts texts to token tensors, in batches of similar length, which reduces padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.transformers.loading import (
    check_options,
    of_tokenizer,
    take_loading,
)
from batchinference.spec.models import TransformersModel

_LEAST_SHARE = 0.1
"""Minimum share of the model's tokens that its tokenizer must have. A model's own tokenizer has
nearly all of them."""


def padded(length: int, multiple: int | None, limit: int) -> int:
    """Return the length rounded up to a multiple, but not beyond the limit of the model."""
    if multiple is None:
        return length
    return max(length, min(-(-length // multiple) * multiple, limit))


def buckets(
    lengths: Sequence[int], most_tokens: int | None, multiple: int | None, limit: int
) -> list[np.ndarray]:
    """Return groups of row numbers, sorted by length.

    The number of rows in a group times its longest padded length is at most `most_tokens`. A row
    that exceeds this limit is in a group of its own. Without `most_tokens`, one group holds all
    rows in their order.
    """
    if most_tokens is None:
        return [np.arange(len(lengths))]
    order = np.argsort(lengths, kind="stable")
    groups: list[np.ndarray] = []
    start = 0
    for end in range(1, len(order) + 1):
        more = end + 1 - start
        if end == len(order) or more * padded(lengths[order[end]], multiple, limit) > most_tokens:
            groups.append(order[start:end])
            start = end
    return groups


def fit(tokenizer: Any, network: Any, source: str) -> None:
    """Make a tokenizer and its model use the same padding token.

    Raises ModelLoad if the tokenizer lacks most of the model's vocabulary. The library creates such
    a tokenizer if a model's folder has no tokenizer files.
    """
    config = network.config.get_text_config()
    words = set(tokenizer.get_vocab())
    known = getattr(config, "vocab_size", None) or 0
    if words <= set(tokenizer.all_special_tokens) or len(words) < _LEAST_SHARE * known:
        of_them = f" of the {known} that the model knows" if known else ""
        raise ModelLoad(
            f"source: the tokenizer of '{source}' has {len(words)} tokens{of_them}. Add the files "
            "of its tokenizer, such as tokenizer.json, to the model's folder"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id


class Tokens:
    """Tokenizes the texts of a batch, and pads those that are computed together.

    `options` are those that a model or task requires. The user's own options override them.
    """

    def __init__(self, tokenizer: Any, model: TransformersModel, **options: Any) -> None:
        self._tokenizer = tokenizer
        self._options = {"truncation": True, **options, **model.options}
        take_loading(self._options)  # unused: tokenizers have one implementation
        check_options(self._options, of_tokenizer(tokenizer))
        self._to_the_full = self._options.pop("padding", True) == "max_length"
        self._most_tokens = model.max_tokens_per_batch
        self._multiple = model.pad_to_multiple_of

    def batches(self, *texts: Sequence[str], **more: Any) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield groups of row numbers with their tensors of rows x tokens. A second list of texts
        holds the second text of each pair."""
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
