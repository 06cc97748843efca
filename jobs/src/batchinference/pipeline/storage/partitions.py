"""Names of directories that hold the values of columns, such as `day=2026-01-31`, as in Hive."""

from __future__ import annotations

from urllib.parse import unquote

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
"""The text of a null value."""


def partition_values(path: str) -> dict[str, str | None]:
    """Return the `key=value` parts of the directories in a path; None for a null value."""
    pairs = (part.split("=", 1) for part in _parts(path))
    return {_unquoted(key): _value(text) for key, text in pairs}


def partition_parts(path: str) -> int:
    """Return the number of `key=value` parts of the directories in a path."""
    return len(_parts(path))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/")[:-1] if "=" in part]


def _value(text: str) -> str | None:
    return None if text == NULL_DIRECTORY else _unquoted(text)


def _unquoted(text: str) -> str:
    """Return a text without percent-encoding; as it is if its bytes are not UTF-8."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text
