"""Text of unknown origin is printed without control characters."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.text import (
    counted,
    escaped_controls,
    in_one_line,
    with_article,
    without_controls,
)

ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs", "Cc", "Cf"]))


def test_escape_sequences_lose_their_escape_character() -> None:
    cases = {
        "\x1b]0;title\x07name": "]0;titlename",
        "\x1b[2Jcleared": "[2Jcleared",
        "\x9b2Jcleared": "2Jcleared",
        "old\rnew": "oldnew",
        "a\x00b\x08c\x7f": "abc",
        "user\u202egpj.exe": "usergpj.exe",
        "\u2066isolated\u2069": "isolated",
        "lone \ud800": "lone \ufffd",
    }
    assert {text: without_controls(text) for text in cases} == cases


def test_ordinary_text_is_unchanged() -> None:
    joined = "family \U0001f468\u200d\U0001f469"
    for text in ("two\nlines\tand a tab", "größe 価格", joined, "\u0645\u06cc\u200c\u062e"):
        assert without_controls(text) == text


def test_line_breaks_become_spaces_in_one_line() -> None:
    assert in_one_line(" quota\n\texceeded:\r\n pods\x1b[0m ") == "quota exceeded: pods[0m"


@given(ANY_TEXT)
def test_json_keeps_its_value_without_control_characters(text: str) -> None:
    line = json.dumps(text, ensure_ascii=False)
    shown = escaped_controls(line)
    assert json.loads(shown) == text
    assert not {char for char in shown if unicodedata.category(char) == "Cc"}


@given(ANY_TEXT)
def test_no_control_character_remains(text: str) -> None:
    shown = without_controls(text)
    assert {char for char in shown if unicodedata.category(char) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert {unicodedata.bidirectional(char) for char in shown}.isdisjoint(
        {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    )
    assert without_controls(shown) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("number", "form", "shown"),
    [(0, "", "0 rows"), (1, "", "1 row"), (1.5, "g", "1.5 rows"), (1234, ",", "1,234 rows")],
)
def test_a_noun_follows_its_number(number: float, form: str, shown: str) -> None:
    assert counted(number, "row", form) == shown


@pytest.mark.parametrize("shown", ["an int", "a str", "a dict", "a Unigram", "an Array"])
def test_a_noun_has_its_article(shown: str) -> None:
    assert with_article(shown.split()[1]) == shown
