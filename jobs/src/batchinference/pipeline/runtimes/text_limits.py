"""Applies the policy `tooLong` to texts with more tokens than a model takes. Such a text is cut, or
fails, or is divided into windows, whose results are combined. Limits include special tokens, such
as those at the beginning and the end of a text.

Also cuts values of rows, the longest first, so that prompts fit into the context of a language
model. The text of templates is not cut, because the model needs the instructions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.row_warnings import warn
from batchinference.pipeline.runtimes.prompts import json_compatible
from batchinference.pipeline.text_chunks import Span, Splitter, tokens_of
from batchinference.spec.models.base import TooLong, WindowedModel
from batchinference.spec.warnings import WarningName

NO_LIMIT = 10**9
"""A maximum length of at least this number means that a tokenizer has no limit."""
_SPARE = 8
"""A text of ASCII characters has at most one token per character, and this many other tokens."""
_OVERLAP_DIVISOR = 8
"""By default, windows overlap by their size divided by this number."""
_POSITIONS = (
    *("max_position_embeddings", "max_encoder_position_embeddings", "n_positions"),
    *("max_sequence_length", "max_seq_len"),
)
_CUT_OR_DIVIDE = "Set the model's field tooLong to truncate, or divide the texts with a step chunk"
_TABLES = ("position_embeddings", "embed_positions", "wpe")


class TextTooLong(ValueError):
    """A text has more tokens than the model takes, and must not be cut or cannot be cut."""

    def __init__(
        self, tokens: int, limit: int, text: str = "the text", fix: str = _CUT_OR_DIVIDE
    ) -> None:
        super().__init__(f"{text} has {tokens} tokens, and the model takes {limit}. {fix}")


def surely_fits(text: str, tokens: int) -> bool:
    """Return True if a text is certain to have at most `tokens` tokens, with any tokenizer."""
    return text.isascii() and len(text) <= tokens - _SPARE


def token_count(tokenizer: Any, text: str, *, special: bool) -> int:
    """Return the number of tokens of a text, with or without the tokenizer's special tokens."""
    return len(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def set_padding_token(tokenizer: Any) -> None:
    """Give a tokenizer a token for padding, if it has none."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)


def max_tokens(tokenizer: Any, network: Any = None) -> int | None:
    """Return the maximum number of tokens of a text for a model; None if there is none. It is the
    limit of the tokenizer or the number of positions, whichever is lower."""
    limits = [tokenizer.model_max_length, positions_of(network) if network is not None else None]
    known = [int(limit) for limit in limits if limit is not None and 0 < limit < NO_LIMIT]
    return min(known, default=None)


def positions_of(network: Any) -> int | None:
    """Return the number of tokens for which a model has positions; None if it has no limit."""
    config = network.config.get_text_config()
    names = (name for name in _POSITIONS if isinstance(getattr(config, name, None), int))
    name = next(names, None)
    if name is None or (
        name == "n_positions" and hasattr(config, "relative_attention_num_buckets")
    ):
        return None
    positions: int = getattr(config, name)
    # models like RoBERTa do not use the positions up to the index of their padding token
    unused = (getattr(table, "padding_idx", None) for table in position_tables(network))
    skipped = next((padding + 1 for padding in unused if padding is not None), 0)
    return positions - skipped if positions > 0 else None


def check_length(length: int, network: Any, source: str) -> None:
    """Raise ModelLoad if `length`, the value of `options.max_length`, exceeds the number of
    positions in the table of a model. On a GPU, a lookup beyond the table would end the process."""
    positions = positions_of(network)
    if positions is not None and length > positions and position_tables(network):
        raise ModelLoad(
            f"options.max_length: '{source}' has {positions} positions, and {length} tokens need "
            "more. Use a smaller number"
        )


def position_tables(network: Any) -> list[Any]:
    """Return the parts of a model that look positions up in a table."""
    return [part for path, part in network.named_modules() if path.endswith(_TABLES)]


@dataclass(frozen=True)
class Windows:
    """Windows of a batch's texts, in the order of the texts."""

    texts: list[str]
    spans: list[Span]
    owners: np.ndarray
    """The index of the text of each window (int64)."""

    def averages(self, results: np.ndarray) -> np.ndarray:
        """Return the mean result of each text's windows (texts x any shape), in the type of
        `results` (windows x any shape). Windows are weighted by their numbers of tokens."""
        weights = np.array([max(1, span.units) for span in self.spans], dtype=np.float64)
        first = np.flatnonzero(np.diff(self.owners, prepend=-1))
        shape = (-1, *[1] * (results.ndim - 1))
        sums = np.add.reduceat(results * weights.reshape(shape), first, axis=0)
        means = sums / np.add.reduceat(weights, first).reshape(shape)
        return np.asarray(means, dtype=results.dtype)

    def groups(self) -> Iterator[slice]:
        """Yield the slice of the windows of each text."""
        first = np.flatnonzero(np.diff(self.owners, prepend=-1)).tolist()
        return (slice(*pair) for pair in zip(first, [*first[1:], len(self.owners)], strict=True))


@dataclass(frozen=True)
class TextLimit:
    """The maximum number of tokens of a text, and the policy for longer texts."""

    tokenizer: Any
    tokens: int | None
    """None if texts may have any length."""
    policy: TooLong
    overlap: int | None = None
    """The number of tokens of the previous window that a window repeats; None for the default."""

    @property
    def divides(self) -> bool:
        """Whether texts are divided into windows."""
        return self.policy == "windows" and self.tokens is not None

    def length(self, text: str) -> int:
        """Return the number of tokens of a text, without special tokens."""
        return token_count(self.tokenizer, text, special=False)

    def find_too_long(self, lengths: Sequence[int], reserved: int = 0) -> list[int]:
        """Return the indexes of the texts that are too long. `reserved` tokens of the maximum are
        for another text. Raises TextTooLong if there is such a text and the policy is `fail`."""
        if self.tokens is None:
            return []
        limit = self.tokens - reserved
        long = [row for row, length in enumerate(lengths) if length > limit]
        if long and self.policy == "fail":
            raise TextTooLong(lengths[long[0]], limit)
        return long

    def warn_of_cuts(self, texts: Sequence[str], prefix: str = "", reserved: int = 0) -> None:
        """Report a warning for each text that the tokenizer is going to cut. `prefix` precedes each
        text. `reserved` tokens are for another text. Raises TextTooLong like `find_too_long`."""
        if self.tokens is None:
            return
        room = self.tokens - reserved - len(prefix)
        rows = [row for row, text in enumerate(texts) if not surely_fits(text, room)]
        if not rows:
            return
        encoded = self.tokenizer(
            [prefix + texts[row] for row in rows], truncation=False, verbose=False
        )
        lengths = [len(ids) for ids in encoded["input_ids"]]
        for at in self.find_too_long(lengths, reserved):
            cut = lengths[at] - (self.tokens - reserved)
            warn(WarningName.TEXT_CUT, row=rows[at], amount=cut)

    def windows(self, texts: Sequence[str], reserved: Sequence[int]) -> Windows:
        """Divide texts into windows. `reserved` has the number of tokens that the windows of each
        text need for special tokens and other texts. Raises TextTooLong if no room is left."""
        limit = self.tokens or 0
        parts: list[str] = []
        all_spans: list[Span] = []
        owners: list[int] = []
        for row, (text, others) in enumerate(zip(texts, reserved, strict=True)):
            if (size := limit - others) < 1:
                raise TextTooLong(
                    others,
                    limit,
                    "what each window repeats (the shorter text of a pair, a prompt or labels)",
                    "Shorten it or, for pairs, set the model's field tooLong to truncate",
                )
            fits = surely_fits(text, size)
            spans = [Span(0, len(text), 1)] if fits else list(self._splitter(size)(text))
            parts += [text[span.start : span.end] for span in spans]
            all_spans += spans
            owners += [row] * len(spans)
        return Windows(parts, all_spans, np.array(owners, dtype=np.int64))

    def _splitter(self, size: int) -> Splitter:
        overlap = size // _OVERLAP_DIVISOR if self.overlap is None else self.overlap
        return Splitter(tokens_of(self.tokenizer), size, overlap)

    def check_windows(self, source: str) -> None:
        """Raise ModelLoad if the policy is `windows`, but the tokenizer or `overlap` forbids it."""
        if not self.divides:
            return
        if not self.tokenizer.is_fast:
            raise ModelLoad(
                f"tooLong: the tokenizer of '{source}' does not say where a token begins, so that "
                "there are no windows. Use truncate, or a step chunk with unit: words"
            )
        if self.overlap is not None and 2 * self.overlap > (self.tokens or 0):
            raise ModelLoad(
                f"windowOverlap: a window of '{source}' has {self.tokens} tokens, and "
                f"{self.overlap} are more than half of them. Use a smaller number"
            )


def set_text_limit(
    tokenizer: Any, model: WindowedModel, tokens: int | None, policy: TooLong = "truncate"
) -> TextLimit:
    """Return the limit of a model's texts: `tokens` tokens. `policy` applies if the job sets no
    `tooLong`. If `tooLong` names a side, the tokenizer cuts on it. Raises ModelLoad like
    `check_windows`."""
    limit = TextLimit(tokenizer, tokens, model.too_long or policy, model.window_overlap)
    if model.too_long in ("truncate", "truncateLeft"):
        tokenizer.truncation_side = "left" if model.too_long == "truncateLeft" else "right"
    limit.check_windows(getattr(model, "source", ""))
    return limit


Row = dict[str, Any]
TextPath = tuple[str | int, ...]
"""The path of a text in a row, such as `("prompt",)` or, in a chat, `("chat", 0, "content")`."""
_MAX_CUTS = 8
"""Maximum number of times that the texts of a row are cut. A cut may remove fewer tokens than
intended, because a shorter text may be divided into other tokens."""
_ANSWER_DIVISOR = 4
_FIXED = "Shorten the model's prompt, system and messages, or give fewer messages in a row"


def room_for_answer(context: int) -> int:
    """Return how many tokens of a context are left for the answer when prompts are cut. Used if
    the job does not set the maximum length of answers."""
    return context // _ANSWER_DIVISOR


@dataclass(frozen=True)
class PromptLimit:
    """Cuts the texts in the values of rows so that prompts have at most `tokens` tokens."""

    tokenizer: Any
    tokens: int
    from_left: bool
    """Whether the beginning of a text is cut. Otherwise, the end is cut."""

    def fitted(
        self, row: Row, render: Callable[[Row], str], *, special: bool = True
    ) -> tuple[Row, str, int]:
        """Cut the texts of a row until its prompt fits. Return the row, the prompt and the number
        of cut tokens. `render` returns the prompt of a row. With `special`, the tokenizer adds
        special tokens to the prompt. Raises TextTooLong if the cuts do not suffice."""
        prompt = render(row)
        if surely_fits(prompt, self.tokens):
            return row, prompt, 0
        before = tokens = token_count(self.tokenizer, prompt, special=special)
        cuts = 0
        while tokens > self.tokens:
            if cuts == _MAX_CUTS:
                raise TextTooLong(tokens, self.tokens, "the prompt without its values", _FIXED)
            row = self._shortened(row, tokens - self.tokens)
            prompt = render(row)
            tokens, cuts = token_count(self.tokenizer, prompt, special=special), cuts + 1
        return row, prompt, before - tokens

    def _shortened(self, row: Row, tokens: int) -> Row:
        """Return a row without `tokens` tokens of its texts, or without all tokens if there are
        fewer. The longest text is cut first."""
        for keys, text in sorted(_texts(row), key=lambda item: -len(item[1])):
            starts = tokens_of(self.tokenizer)(text)
            row = _replaced(row, keys, self._cut(text, starts, tokens))
            tokens -= len(starts)
            if tokens <= 0:
                break
        return row

    def _cut(self, text: str, starts: np.ndarray, tokens: int) -> str:
        """Return a text without its first or last `tokens` tokens. `starts` are the indexes of the
        characters at which the tokens of the text begin."""
        if tokens >= len(starts):
            return ""
        return text[starts[tokens] :] if self.from_left else text[: starts[len(starts) - tokens]]


def _texts(row: Row) -> Iterator[tuple[TextPath, str]]:
    """Yield each text of a row with its path: values, messages and parts of messages."""
    for name, value in row.items():
        if isinstance(value, str):
            yield (name,), value
        elif isinstance(messages := json_compatible(value), list):
            for at, message in enumerate(messages):
                content = message.get("content") if isinstance(message, dict) else None
                for keys, text in _texts_of_message(content):
                    yield (name, at, "content", *keys), text


def _texts_of_message(content: Any) -> Iterator[tuple[TextPath, str]]:
    if isinstance(content, str):
        yield (), content
    for at, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield (at, "text"), part["text"]


def _replaced(value: Any, keys: TextPath, text: str) -> Any:
    """Return a copy of a dict or list in which the value at the path `keys` is the text."""
    if not keys:
        return text
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    copied[keys[0]] = _replaced(json_compatible(copied[keys[0]]), keys[1:], text)
    return copied
