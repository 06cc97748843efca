"""Converts texts to tensors. With `maxTokensPerBatch`, similarly long texts are computed together.
A result does not depend on the other texts of its batch. Either padding is masked, or only texts of
equal length are computed together."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers import BatchEncoding

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.pipeline.runtimes.flat_tokens import (
    MASK,
    FlatTokenizer,
    FlatTokens,
    Prepared,
    pad,
    refuse,
    tokens_in,
)
from batchinference.pipeline.runtimes.model_io import Batch
from batchinference.pipeline.runtimes.text_limits import (
    Windows,
    check_length,
    max_tokens,
    set_padding_token,
    set_text_limit,
)
from batchinference.pipeline.runtimes.transformers.loading import (
    ModelLoader,
    check_options,
    pop_loading_options,
    tokenizer_options,
)
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.base import TooLong
from batchinference.spec.warnings import WarningName

_MIN_VOCABULARY_SHARE = 0.1
"""A tokenizer that has less than this fraction of a model's tokens does not belong to the model."""


def buckets(lengths: Sequence[int] | np.ndarray, token_budget: int | None) -> list[np.ndarray]:
    """Return groups of row numbers (int64), sorted by the `lengths` of the rows in tokens. The
    number of rows in a group times its longest length is at most `token_budget`. A row with more
    tokens is alone. If `token_budget` is None, one group has all rows in their order."""
    if token_budget is None:
        return [np.arange(len(lengths))]
    order = np.argsort(lengths, kind="stable")
    groups: list[np.ndarray] = []
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > token_budget:
            groups.append(order[start:end])
            start = end
    return groups


def _of_equal_length(rows: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    sizes = lengths[rows]
    return [rows[sizes == length] for length in dict.fromkeys(sizes.tolist())]


def match_tokenizer(tokenizer: Any, network: Any, source: str) -> None:
    """Give a tokenizer and its model missing padding tokens. Limit the tokenizer like its model.
    Raises ModelLoad if the tokenizer lacks most of the model's vocabulary. The library creates such
    a tokenizer if the folder of a model has no tokenizer files."""
    config = network.config.get_text_config()
    tokens = set(tokenizer.get_vocab())
    known = getattr(config, "vocab_size", None) or 0
    if tokens <= set(tokenizer.all_special_tokens) or len(tokens) < _MIN_VOCABULARY_SHARE * known:
        ratio = f" of the {known} that the model knows" if known else ""
        raise ModelLoad(
            f"source: the tokenizer of '{source}' has {len(tokens)} tokens{ratio}. Add the files "
            "of its tokenizer, such as tokenizer.json, to the model's folder"
        )
    set_padding_token(tokenizer)
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    if (limit := max_tokens(tokenizer, network)) is not None:
        tokenizer.model_max_length = limit


def set_padding_side(tokenizer: Any, network: Any) -> None:
    """Make a tokenizer pad after texts, so that padding does not move the positions of tokens. For
    a model that classifies the last position, make the tokenizer pad before texts."""
    summarizes_last = getattr(network.config, "summary_type", None) == "last"
    pads_before = summarizes_last and hasattr(network, "sequence_summary")
    tokenizer.padding_side = "left" if pads_before else "right"


class BatchTokenizer:
    """Tokenizes the texts of a batch, and pads those that are computed together. If the job does
    not set `tooLong`, `policy` applies to texts that are too long. If `unpadded`, only texts of the
    same length are computed together. The options of the job override those in `options`."""

    def __init__(
        self,
        tokenizer: Any,
        model: TransformersModel,
        network: Any,
        policy: TooLong = "truncate",
        *,
        unpadded: bool = False,
        **options: Any,
    ) -> None:
        self._tokenizer = tokenizer
        self._options = {**options, **model.options}
        pop_loading_options(self._options)  # not used, as tokenizers have a single implementation
        check_options(self._options, tokenizer_options(tokenizer))
        if "truncation" in self._options:
            raise ModelLoad("options.truncation: not an option. Use the model's field tooLong")
        padding = self._options.pop("padding", True)
        self._pad_to_max = padding == "max_length" and not unpadded
        max_length = self._options.pop("max_length", None)
        if max_length is not None:
            check_length(max_length, network, model.source)
        self.limit = set_text_limit(tokenizer, model, max_length or max_tokens(tokenizer), policy)
        self._flat = FlatTokenizer.of(tokenizer, self._options)
        self._unpadded = unpadded
        self._token_budget = model.max_tokens_per_batch

    def batches(
        self,
        *texts: Sequence[str],
        row_numbers: Sequence[int] | None = None,
        prepared: Prepared | None = None,
        **more: Any,
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield indexes (int64) of texts to compute together, and their tensors (texts x tokens). A
        second list of texts has the second text of each pair. Warnings name the rows in
        `row_numbers`, by default the indexes of the texts. `prepared` may have the tokens."""
        options = {**self._options, **more}
        flat = FlatTokenizer.of(self._tokenizer, options) if more else self._flat
        if flat is not None:
            tokens, has_mask = flat.tokens(prepared or {}, *texts), flat.has_mask
        else:
            refuse(prepared or {})
            tokens = self._library_tokens(texts, truncation=False, verbose=False, **options)
            has_mask = MASK in tokens.features
        if long := self.limit.find_too_long(tokens.lengths.tolist()):
            full, tokens = tokens, self._cut(tokens, np.array(long), texts, options)
            for text in long:
                row = text if row_numbers is None else row_numbers[text]
                cut = full.lengths[text] - tokens.lengths[text]
                warn(WarningName.TEXT_CUT, row=row, amount=int(cut))
        yield from self._groups(tokens, has_mask=has_mask)

    def _groups(
        self, tokens: FlatTokens, *, has_mask: bool
    ) -> Iterator[tuple[np.ndarray, BatchEncoding]]:
        """Yield groups of texts, padded to the longest text of the group or to the limit."""
        lengths = tokens.lengths
        if self._pad_to_max and self.limit.tokens:
            lengths = np.full_like(lengths, self.limit.tokens)
        groups = buckets(lengths, self._token_budget)
        if self._unpadded or not has_mask:  # the model would read the padding
            groups = [part for group in groups for part in _of_equal_length(group, lengths)]
        has_mask |= MASK in self._tokenizer.model_input_names
        for rows in groups:
            arrays = pad(self._tokenizer, tokens, rows, int(lengths[rows].max()), has_mask=has_mask)
            yield rows, BatchEncoding({name: torch.from_numpy(x) for name, x in arrays.items()})

    def _cut(
        self,
        tokens: FlatTokens,
        long: np.ndarray,
        texts: tuple[Sequence[str], ...],
        options: dict[str, Any],
    ) -> FlatTokens:
        """Return the tokens of all texts, with the texts `long` (by index) cut to the limit."""
        flat = FlatTokenizer.of(self._tokenizer, options) if len(texts) == 1 else None
        limit = self.limit.tokens or 0
        if flat is not None and (cut := flat.cut(tokens, limit)) is not None:
            return cut
        parts = tuple([column[row] for row in long] for column in texts)
        cut = self._library_tokens(parts, truncation=True, max_length=limit, **options)
        return tokens.with_rows(long, cut)

    def _library_tokens(self, texts: Sequence[Sequence[str]], **options: Any) -> FlatTokens:
        return FlatTokens.from_lists(self._tokenizer(*map(list, texts), **options))


def as_texts(values: Iterable[Any]) -> list[str]:
    """Return the values as a list. Raises TypeError if one is not a text."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"expected text, got {type(value).__name__}")
    return list(values)


class TextInput:
    """Converts texts, or pairs of texts, to tensors."""

    def __init__(
        self, loader: ModelLoader, model: TransformersModel, network: Any, **options: Any
    ) -> None:
        self._tokenizer = loader.load_processor(transformers.AutoTokenizer)
        self._names = [name for name in ("text", "text_pair") if name in model.inputs]
        self._config = network.config.get_text_config()
        # a model may classify the last token that is not the padding token of its configuration
        padding = self._padding() if model.task == "text-classification" else None
        unpadded = model.task == "text-classification" and padding is None
        if padding is not None:
            self._tokenizer.pad_token = padding
        match_tokenizer(self._tokenizer, network, model.source)
        set_padding_side(self._tokenizer, network)
        if unpadded:
            self._config.pad_token_id = -1  # no token has this id
        self._tokens = BatchTokenizer(self._tokenizer, model, network, unpadded=unpadded, **options)

    def _padding(self) -> str | None:
        """Return the padding token of the model's configuration; None if no token has its id."""
        pad = getattr(self._config, "pad_token_id", None)
        if pad is None or not 0 <= pad < len(self._tokenizer):
            return None
        token = self._tokenizer.convert_ids_to_tokens(pad)
        return None if token is None else str(token)

    def __call__(
        self, inputs: Batch, prepared: Prepared | None
    ) -> Iterator[tuple[np.ndarray, Any]]:
        columns = (as_texts(inputs[name]) for name in self._names)
        for rows, tensors in self._tokens.batches(*columns, prepared=prepared):
            count_tokens(int(rows[0]), read=tokens_in(tensors))
            yield rows, tensors

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        special = self._tokenizer.num_special_tokens_to_add(pair=False)
        return [special + self._tokens.limit.length(text) for text in texts]

    def divide(self, inputs: Batch) -> tuple[Batch, Windows | None]:
        """Return inputs with a row for each window, and the windows. Of each pair, the longer text
        is divided. If the limit does not divide texts, return `inputs` and None."""
        limit = self._tokens.limit
        if not limit.divides:
            return inputs, None
        columns = [as_texts(inputs[name]) for name in self._names]
        special = self._tokenizer.num_special_tokens_to_add(pair=len(columns) > 1)
        if len(columns) == 1:
            windows = limit.windows(columns[0], [special] * len(columns[0]))
            return {self._names[0]: np.array(windows.texts, object)}, windows
        pairs = list(zip(*columns, strict=True))
        sizes = [tuple(map(limit.length, pair)) for pair in pairs]
        longer = [int(second > first) for first, second in sizes]
        windows = limit.windows(
            [pair[at] for pair, at in zip(pairs, longer, strict=True)],
            [special + size[1 - at] for size, at in zip(sizes, longer, strict=True)],
        )
        divided: tuple[list[str], list[str]] = ([], [])
        for text, row in zip(windows.texts, windows.owners.tolist(), strict=True):
            divided[longer[row]].append(text)
            divided[1 - longer[row]].append(pairs[row][1 - longer[row]])
        named = zip(self._names, divided, strict=True)
        return {name: np.array(column, object) for name, column in named}, windows
