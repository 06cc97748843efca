"""Decodes texts of files."""

from __future__ import annotations


def decode_text(content: bytes, encoding: str = "utf-8") -> str:
    """Return the decoded text without a leading byte order mark. Raises UnicodeDecodeError."""
    return content.decode(encoding).removeprefix("\ufeff")
