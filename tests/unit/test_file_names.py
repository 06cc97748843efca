"""Paths that are not valid UTF-8 have a text, from which they can be restored."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.file_names import escaped, os_path


def name_of(content: bytes) -> str:
    """Return the name of a file as Python shows it."""
    return os.fsdecode(content)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"a b.txt", "a b.txt"),
        ("café.txt".encode(), "café.txt"),
        (b"caf\xe9.txt", r"caf\xe9.txt"),
        (rb"caf\xe9.txt", r"caf\x5cxe9.txt"),
        (rb"a\b\x41\n.txt", r"a\b\x41\n.txt"),
        (rb"a\x5cb", r"a\x5cx5cb"),
        ("é\u20ac".encode() + b"\xff/\xe9", r"é€\xff/\xe9"),
    ],
)
def test_text_of_a_name(name: bytes, text: str) -> None:
    assert escaped(name_of(name)) == text
    assert os.fsencode(os_path(text)) == name


@given(
    parts=st.lists(st.sampled_from([b"\\", b"x", b"5", b"c", b"e9", b"\xe9", "é".encode(), b"8"]))
)
def test_each_name_has_one_text(parts: list[bytes]) -> None:
    name = b"".join(parts)
    text = escaped(name_of(name))
    text.encode()
    assert os.fsencode(os_path(text)) == name
    assert escaped(os_path(text)) == text


def test_escapes_of_valid_utf_8_are_the_same_file() -> None:
    assert os_path(r"caf\xc3\xa9.txt") == "café.txt"
