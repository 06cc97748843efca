"""Cuts texts of rows, so that their prompts fit into the context of a language model.

Only values of the row are cut, the longest first. The text of templates remains, because the model
needs the instructions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchinference.pipeline.runtimes.prompts import json_compatible
from batchinference.pipeline.runtimes.text_limits import TextTooLong, surely_fits
from batchinference.pipeline.text_chunks import tokens_of

Row = dict[str, Any]
TextPath = tuple[str | int, ...]
"""The path of a text in a row, such as `("prompt",)` or, in a chat, `("chat", 0, "content")`."""
_TRIES = 8
"""Maximum number of times that the texts of a row are cut. A cut may remove fewer tokens than
intended, because a shorter text may be divided into other tokens."""
_ANSWER_SHARE = 4
_FIXED = "Shorten the model's prompt, system and messages, or give fewer messages in a row"


def room_for_answer(context: int) -> int:
    """Return the number of tokens of a context that prompts leave for the answer, if prompts are
    cut and the job does not set the maximum length of answers."""
    return context // _ANSWER_SHARE


@dataclass(frozen=True)
class PromptLimit:
    """Cuts texts of rows so that prompts have at most `tokens` tokens."""

    tokenizer: Any
    tokens: int
    from_left: bool
    """Whether the beginning of a text is cut, and not its end."""

    def fitted(
        self, row: Row, render: Callable[[Row], str], *, special: bool = True
    ) -> tuple[Row, str, int]:
        """Return a row whose prompt fits, this prompt, and the number of tokens that were cut.

        `render` returns the prompt of a row, and `special` says whether the tokenizer adds special
        tokens to it. Raises TextTooLong if the prompt is too long even without texts of the row."""
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
        """Return a row without `tokens` tokens of its texts, or without all if they have fewer."""
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
        """Return a text without `tokens` tokens at one end. Tokens begin at indexes `starts`."""
        if tokens >= len(starts):
            return ""
        return text[starts[tokens] :] if self.from_left else text[: starts[len(starts) - tokens]]


def _texts(row: Row) -> Iterator[tuple[TextPath, str]]:
    """Yield the path and the text of each value, message and part of a message that is a text."""
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
