"""Texts are divided into spans that end with sentences and words, and cover the whole text."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.text_chunks import Span, Splitter, Units, characters, tokens_of, words
from support.models.tiny_transformers import characters as character_tokenizer
from support.tiers import examples

LETTERS = st.sampled_from([*"ab. \n!?\u3002\u00e9", "\U0001f389", "e\u0301", "\r\n", "\n\n"])
TEXTS = st.lists(LETTERS, max_size=120).map("".join)


@cache
def tokens() -> Units:
    """Return the tokens of a tokenizer of bytes: several for some characters."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bytes_ = ByteLevelBPETokenizer()
    bytes_.train_from_iterator(["a b ab. ab! ba"], vocab_size=280, show_progress=False)
    return tokens_of(PreTrainedTokenizerFast(tokenizer_object=bytes_._tokenizer))


UNITS = {"characters": lambda: characters, "words": lambda: words, "tokens": tokens}


def texts_of(text: str, spans: list[Span]) -> list[str]:
    return [text[span.start : span.end] for span in spans]


@pytest.mark.parametrize("unit", UNITS)
@settings(max_examples=examples(150), deadline=None)
@example(text="", size=2, overlap=1)
@example(text="\U0001f389" * 9, size=2, overlap=1)
@example(text=" " * 50, size=4, overlap=2)
@given(text=TEXTS, size=st.integers(2, 30), overlap=st.integers(0, 15))
def test_spans_cover_the_text(unit: str, text: str, size: int, overlap: int) -> None:
    units = UNITS[unit]()
    spans = list(Splitter(units, size, min(overlap, size // 2))(text))
    assert (spans[0].start, spans[-1].end) == (0, len(text))
    for span, following in pairwise(spans):
        assert span.start < following.start <= span.end < following.end
        assert overlap or following.start == span.end
    for span, part in zip(spans, texts_of(text, spans), strict=True):
        found = units(part)
        assert span.units == len(found)
        # a single character may have more tokens
        assert len(found) <= size or len(np.unique(found)) == 1


def test_spans_end_with_paragraphs_sentences_lines_and_words() -> None:
    for text, expected in (
        ("One two. Three four. Five", ["One two. ", "Three four. ", "Five"]),
        ("One two.\n\nThree. Four five", ["One two.\n\n", "Three. Four ", "five"]),
        ("one two\nthree four five", ["one two\n", "three four ", "five"]),
        ("one two three four five", ["one two ", "three four ", "five"]),
        ("onetwothreefourfive", ["onetwothreefo", "urfive"]),
        ("\u4e00" * 8 + "\u3002" + "\u4e00" * 5, ["\u4e00" * 8 + "\u3002", "\u4e00" * 5]),
    ):  # fmt: skip
        assert texts_of(text, list(Splitter(characters, 13)(text))) == expected


def test_overlap_begins_with_a_word() -> None:
    text = "one two three four five six"
    spans = list(Splitter(characters, 14, 6)(text))
    assert texts_of(text, spans) == ["one two three ", "three four ", "four five six"]


def test_units_are_counted() -> None:
    text = "one two three four five"
    assert [span.units for span in Splitter(words, 2)(text)] == [2, 2, 1]
    tokenizer = tokens_of(character_tokenizer())
    assert [span.units for span in Splitter(tokenizer, 12)(text)] == [8, 11, 4]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["x", " ", "a b. ", "\u4e00", "\n\n"])
@pytest.mark.parametrize("unit", UNITS)
def test_long_texts_take_linear_time(text: str, unit: str) -> None:
    long = text * (60_000 // len(text))
    spans = Splitter(UNITS[unit](), 500, 100)(long)
    assert sum(1 for _ in spans) <= 3 * len(long.encode()) / 400 + 1
