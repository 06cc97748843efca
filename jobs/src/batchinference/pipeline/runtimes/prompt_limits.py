"""Cuts texts of rows, so that their prompts fit into the context of a language model.

Only values of the row are cut, the longest first. The text of templates remains, because the model
needs the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchinference.pipeline.runtimes.prompts import plain
from batchinference.pipeline.runtimes.text_limits import TextTooLong, surely_fits
from batchinference.pipeline.text_chunks import tokens_of

Row = dict[str, Any]
Keys = tuple[str | int, ...]
"""Where a text of a row is: the name of its input, and for messages the keys below it."""
_TRIES = 8
"""How often texts are cut. The tokens of a shorter text are not always those of its beginning."""
_ANSWER_SHARE = 4
_FIXED = "Shorten the model's prompt, system and messages, or give fewer messages in a row"


def room_for_answer(context: int) -> int:
    """Return how many of the tokens of a context prompts leave for the new text, if they are cut
    and the job does not say how long its texts are."""
    return context // _ANSWER_SHARE


@dataclass(frozen=True)
class PromptLimit:
    """The number of tokens for prompts, and the side at which texts are cut. `special` is whether
    the tokenizer adds special tokens to a prompt."""

    tokenizer: Any
    tokens: int
    from_left: bool

    def fitted(
        self, row: Row, render: Callable[[Row], str], *, special: bool = True
    ) -> tuple[Row, str, int]:
        """Return a row whose prompt fits, the prompt, and the number of tokens that were cut.
        `render` returns the prompt of a row. Raises TextTooLong if it does not fit even without the
        texts of the row."""
        prompt = render(row)
        if surely_fits(prompt, self.tokens):
            return row, prompt, 0
        before = tokens = self._length(prompt, special)
        for _ in range(_TRIES):
            if tokens <= self.tokens:
                return row, prompt, before - tokens
            row = self._shortened(row, tokens - self.tokens)
            prompt = render(row)
            tokens = self._length(prompt, special)
        raise TextTooLong(tokens, self.tokens, "the prompt without its values", _FIXED)

    def _shortened(self, row: Row, tokens: int) -> Row:
        """Return a row whose texts have fewer tokens together, as far as possible."""
        for keys, text in sorted(_texts(row), key=lambda item: -len(item[1])):
            starts = tokens_of(self.tokenizer)(text)
            row = _replaced(row, keys, self._cut(text, starts, tokens))
            tokens -= len(starts)
            if tokens <= 0:
                break
        return row

    def _length(self, prompt: str, special: bool) -> int:
        return len(self.tokenizer(prompt, add_special_tokens=special, verbose=False)["input_ids"])

    def _cut(self, text: str, starts: np.ndarray, tokens: int) -> str:
        """Return a text without its last or first tokens, which begin at `starts`."""
        if tokens >= len(starts):
            return ""
        return text[starts[tokens] :] if self.from_left else text[: starts[len(starts) - tokens]]


def _texts(row: Row) -> Iterator[tuple[Keys, str]]:
    """Yield the keys and the text of each value of a row, and of each message and its parts."""
    for name, value in row.items():
        if isinstance(value, str):
            yield (name,), value
        elif isinstance(messages := plain(value), list):
            for at, message in enumerate(messages):
                content = message.get("content") if isinstance(message, dict) else None
                for keys, text in _texts_of_message(content):
                    yield (name, at, "content", *keys), text


def _texts_of_message(content: Any) -> Iterator[tuple[Keys, str]]:
    if isinstance(content, str):
        yield (), content
    for at, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield (at, "text"), part["text"]


def _replaced(value: Any, keys: Keys, text: str) -> Any:
    """Return a copy of a dict or list in which the value at these keys is the text."""
    if not keys:
        return text
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    copied[keys[0]] = _replaced(plain(copied[keys[0]]), keys[1:], text)
    return copied
