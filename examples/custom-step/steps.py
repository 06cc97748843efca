"""A custom step that computes how easy a text is to read."""

from __future__ import annotations

import re

import numpy as np

WORD = re.compile(r"[A-Za-z']+")
VOWELS = re.compile(r"[aeiouy]+")


class ReadingEase:
    """Adds the number of words and the Flesch reading ease (higher is easier) of each text."""

    def __init__(self, column: str) -> None:
        self.column = column

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        words = [WORD.findall(text.lower()) for text in batch[self.column]]
        return {
            **batch,
            "words": np.array([len(sentence) for sentence in words]),
            "reading_ease": np.array([self.ease(sentence) for sentence in words]),
        }

    @staticmethod
    def ease(words: list[str]) -> float:
        """Return the Flesch reading ease of one sentence, or NaN for a text without words."""
        if not words:
            return float("nan")
        syllables = sum(max(1, len(VOWELS.findall(word))) for word in words)
        return 206.835 - 1.015 * len(words) - 84.6 * syllables / len(words)
