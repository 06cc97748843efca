"""Parses Hive partition directories, whose names have a column and a value (`day=2026-01-31`)."""

from __future__ import annotations

from urllib.parse import unquote

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
"""The text of the value null."""


def partition_values(path: str) -> dict[str, str | None]:
    """Return the values of the `key=value` directories in a path, by key; None for null."""
    pairs = (part.split("=", 1) for part in _parts(path))
    return {
        _unquoted(key): None if text == NULL_DIRECTORY else _unquoted(text) for key, text in pairs
    }


def partition_parts(path: str) -> int:
    """Return the number of `key=value` directories in a path. A key may be there twice."""
    return len(_parts(path))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/")[:-1] if "=" in part]


def _unquoted(text: str) -> str:
    """Return a text without percent-encoding; unchanged if the decoded bytes are not UTF-8."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text
