"""Splits long texts into chunks: spans of limited numbers of characters, words or tokens (units).

The spans cover a text without gaps. A span ends in the second half of its maximum length. It ends
after the last paragraph there, or else after the last sentence, line or word. The time is linear in
the length of the text. Only a few spans are in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Units = Callable[[str], np.ndarray]
"""Returns the indexes of the first characters of all units of a text, ascending (int64)."""
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_CLOSING = "\N{RIGHT DOUBLE QUOTATION MARK}\N{RIGHT CORNER BRACKET}"
_FULL_STOPS = "\N{IDEOGRAPHIC FULL STOP}\N{FULLWIDTH EXCLAMATION MARK}\N{FULLWIDTH QUESTION MARK}"
_SENTENCE = re.compile(rf"[.!?]+[\"'{_CLOSING})\]]*\s+|[{_FULL_STOPS}]+[{_CLOSING}]*\s*")
_LINE = re.compile(r"\n\s*")
_WORD = re.compile(r"\s+")
_BOUNDARIES = (_PARAGRAPH, _SENTENCE, _LINE, _WORD)
"""The preferred ends of a span, the best first."""
_UNIT_LENGTH = 6.0
"""First guess of the characters per unit. More of the text is read if the guess is too low."""
_MARGIN = 1.25
"""The next guess is the number of characters per unit of the last span, times this factor."""


class Span(NamedTuple):
    """A part of a text, from character `start` up to `end`, with its number of units."""

    start: int
    end: int
    units: int


def characters(text: str) -> np.ndarray:
    """Return the beginnings (int64) of the characters of a text."""
    return np.arange(len(text))


def words(text: str) -> np.ndarray:
    """Return the beginnings (int64) of the words of a text, between white space."""
    return np.array([match.start() for match in re.finditer(r"\S+", text)], dtype=np.int64)


def tokens_of(tokenizer: Any) -> Units:
    """Return a function that finds the tokens of a fast tokenizer, without special tokens."""
    return partial(_tokens, tokenizer)


def _tokens(tokenizer: Any, text: str) -> np.ndarray:
    encoded = tokenizer(
        text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False
    )
    starts = np.array([start for start, _ in encoded["offset_mapping"]], dtype=np.int64)
    return np.maximum.accumulate(starts) if len(starts) else starts


@dataclass(frozen=True)
class Splitter:
    """Splits texts into spans of at most `size` units (more if one character has more units). Each
    span repeats up to `overlap` units from the end of the previous span."""

    units: Units
    size: int
    overlap: int = 0

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield the spans of a text. An empty text has one empty span."""
        start, repeated, unit_length = 0, 0, _UNIT_LENGTH
        while True:
            piece, starts = self._read(text, start, int(unit_length * (self.size + 2)) + 1)
            end, starts = self._end(piece, starts, repeated)
            if repeated >= end > 0:  # at the start of a piece, repeated text may have more tokens
                start, repeated = start + repeated, 0
                continue
            yield Span(start, start + end, len(starts))
            if start + end == len(text):
                return
            unit_length = _MARGIN * end / max(1, len(starts))
            begin = self._next_begin(piece, end, starts)
            start, repeated = start + begin, end - begin

    def _read(self, text: str, start: int, length: int) -> tuple[str, np.ndarray]:
        """Return a piece of the text from character `start` on, and the beginnings of its units.
        The piece has more than `size` units, or is the rest of the text."""
        while True:
            piece = text[start : start + length]
            starts = self.units(piece)
            # one unit more, because the piece may cut its last unit
            if len(starts) > self.size + 1 or start + length >= len(text):
                return piece, starts
            length *= 2

    def _end(self, piece: str, starts: np.ndarray, repeated: int) -> tuple[int, np.ndarray]:
        """Return the end of the span at the beginning of a piece, and the beginnings of its units.
        The first `repeated` characters are also in the previous span."""
        end = len(piece)
        while len(starts) > self.size:
            limit = _limit(starts, self.size, end)
            if limit >= end or limit <= repeated:
                return limit, starts
            end = _best_end(piece, max(limit // 2, repeated), limit)
            # without following text, the same characters may have other tokens
            starts = self.units(piece[:end])
        return end, starts

    def _next_begin(self, piece: str, end: int, starts: np.ndarray) -> int:
        """Return where the next span begins: if possible, at the beginning of a word."""
        # at least a quarter of a span is new, to limit the number of spans
        repeated = min(self.overlap, len(starts) - self.size // 4 - 1)
        if repeated < 1:
            return end
        begin = int(starts[-repeated])
        if begin == 0 or piece[begin - 1].isspace():
            return begin or end
        word = _WORD.search(piece, begin, end)
        return word.end() if word and word.end() < end else begin


def _limit(starts: np.ndarray, size: int, end: int) -> int:
    """Return the maximum end of a span with `size` units. A character of several units, such as
    byte tokens, is not divided."""
    if starts[size] > 0:
        return int(starts[size])
    later = starts[starts > 0]
    return int(later[0]) if len(later) else end


def _best_end(piece: str, first: int, limit: int) -> int:
    """Return the best end of a span between the characters `first` and `limit`."""
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(piece, first, limit)]
        if ends:
            return ends[-1]
    return limit
