"""Names of the encodings of text. Readers and decode steps share them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from batchinference.spec.base import refusal

_LINE = "x" * 64
"""A text that every encoding of text supports. `idna` does not: it is for the names of hosts."""


def _check_encoding(encoding: str) -> str:
    try:
        _LINE.encode(encoding)
    except (LookupError, ValueError):
        raise refusal("Python knows no such encoding of text. Use one such as utf-8") from None
    return encoding


Encoding = Annotated[str, Field(min_length=1, max_length=32), AfterValidator(_check_encoding)]
