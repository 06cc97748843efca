"""Cuts texts of rows, so that their prompts fit into the context of a language model.

Only values of the row are cut, the longest first. The text of templates remains, because the model
needs the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchinference.pipeline.runtimes.prompts import plain
from batchinference.pipeline.runtimes.text_limits import TextTooLong, surely_fits
from batchinference.pipeline.text_spans import tokens_of

Row = dict[str, Any]
Keys = tuple[str | int, ...]
"""Where a text of a row is: the name of its input, or also the index of a message."""
_TRIES = 8
"""How often texts are cut. The tokens of a shorter text are not always those of its beginning."""


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
        `render` returns the prompt of a row. Raises TextTooLong if the template is too long."""
        prompt = render(row)
        if surely_fits(prompt, self.tokens):
            return row, prompt, 0
        before = tokens = self._length(prompt, special)
        for _ in range(_TRIES):
            if tokens <= self.tokens:
                return row, prompt, before - tokens
            longest = max(_texts(row), key=lambda item: len(item[1]), default=((), ""))
            if not longest[1]:
                break
            row = _replaced(row, longest[0], self._cut(longest[1], tokens - self.tokens))
            prompt = render(row)
            tokens = self._length(prompt, special)
        raise TextTooLong(tokens, self.tokens)

    def _length(self, prompt: str, special: bool) -> int:
        return len(self.tokenizer(prompt, add_special_tokens=special, verbose=False)["input_ids"])

    def _cut(self, text: str, tokens: int) -> str:
        """Return a text without its last or first tokens."""
        starts = tokens_of(self.tokenizer)(text)
        if tokens >= len(starts):
            return ""
        return text[starts[tokens] :] if self.from_left else text[: starts[len(starts) - tokens]]


def _texts(row: Mapping[str, Any]) -> Iterator[tuple[Keys, str]]:
    """Yield the keys and the text of each value of a row, and of each message."""
    for name, value in row.items():
        if isinstance(value, str):
            yield (name,), value
        elif isinstance(messages := plain(value), list):
            for at, message in enumerate(messages):
                if isinstance(message, dict) and isinstance(message.get("content"), str):
                    yield (name, at), message["content"]


def _replaced(row: Row, keys: Keys, text: str) -> Row:
    name = str(keys[0])
    if len(keys) == 1:
        return {**row, name: text}
    messages = [*plain(row[name])]
    messages[int(keys[1])] = {**messages[int(keys[1])], "content": text}
    return {**row, name: messages}
