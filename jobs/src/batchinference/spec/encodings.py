"""The type of fields with the Python name of a text encoding, for readers and decode steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from batchinference.spec.base import invalid

_LINE = "x" * 64
"""A text that every text encoding can encode, but not `idna`, which is for host names."""


def _check_encoding(encoding: str) -> str:
    try:
        _LINE.encode(encoding)
    except (LookupError, ValueError):
        raise invalid("Python knows no such encoding of text. Use one such as utf-8") from None
    return encoding


Encoding = Annotated[str, Field(min_length=1, max_length=32), AfterValidator(_check_encoding)]
