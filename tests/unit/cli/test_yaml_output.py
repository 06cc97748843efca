"""YAML output: readable, and unambiguous for every YAML parser."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.cli.yaml_output import as_yaml
from support.tiers import examples

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
GO_NUMBERS = st.from_regex(
    r"\A[-+]?(0o[0-7]{1,3}|0[xX][0-9a-fA-F]{1,3}|0[bB][01]{1,3}"
    r"|(\.[0-9]{1,3}|[0-9]{1,3}(\.[0-9]{0,3})?)([eE][-+]?[0-9]{1,2})?)\Z"
)
"""Text that kubectl parses as a number."""


def written(text: str) -> str:
    """Return the YAML of a text that is a value."""
    return as_yaml([{"a": text}]).removeprefix("---\na: ").removesuffix("\n")


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), min_size=1, max_size=3))
def test_yaml_survives_a_round_trip(objects: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects


@given(GO_NUMBERS)
def test_yaml_text_that_looks_like_a_number_is_quoted(text: str) -> None:
    assert written(text) in (f"'{text}'", f'"{text}"')


@pytest.mark.parametrize(
    "text",
    ["y", "Y", "n", "N", "yes", "No", "on", "OFF", "true", "null", "~", "", "2026-01-01", "1:30"],
)
def test_yaml_ambiguous_text_is_quoted(text: str) -> None:
    assert written(text) == f"'{text}'"


@pytest.mark.parametrize("text", ["a", "yy", "500m", "4Gi", "2.60.0", "1e", "e3", "v1", "a-1"])
def test_yaml_plain_text_is_not_quoted(text: str) -> None:
    assert written(text) == text


SHARED = {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([{"a": "x"}, {"b": "y"}], "---\na: x\n---\nb: 'y'\n"),
        ([{"file": "a: 1\nb:\n  c: 2\n"}], "---\nfile: |\n  a: 1\n  b:\n    c: 2\n"),
        ([{"a": SHARED, "b": SHARED}], "---\na:\n  drop:\n  - ALL\nb:\n  drop:\n  - ALL\n"),
        ([{"kind": "b", "apiVersion": "a"}], "---\nkind: b\napiVersion: a\n"),
    ],
)
def test_yaml_layout(objects: list[dict[str, Any]], expected: str) -> None:
    assert as_yaml(objects) == expected
