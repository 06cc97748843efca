"""Names Hive partition directories (`day=2026-01-31`), and parses their names."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

from batchinference.pipeline.errors import JobFailure

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
"""The text of the value null."""
MAX_VALUE = 200
"""Maximum number of bytes of a partition value in a directory name, without the hash."""
MAX_SEGMENT = 255 - len("=~")
"""Maximum number of bytes of the column name, the shortened value and its hash together."""
SHORTENED, HASH_DIGITS = "~", 32
_CUT_ESCAPE = re.compile("%.?$")
"""Matches an incomplete percent-encoding at the end of a text that was cut."""


def directory_name(name: str, value: object) -> str:
    """Return the directory name for a value of a partition column. A long value is cut and gets a
    hash, because names have at most 255 bytes. Raises JobFailure for a too long column name."""
    column = quote(name, safe="")
    text = NULL_DIRECTORY if value is None else quote(value_text(value), safe=" ")
    room = min(MAX_VALUE, MAX_SEGMENT - len(column) - HASH_DIGITS)
    if room < 1:
        raise JobFailure(
            f"write.partitionBy: the name of column '{name}' is too long for a directory. Rename it"
        )
    if len(text) > room:
        digest = hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
        text = f"{_CUT_ESCAPE.sub('', text[:room])}{SHORTENED}{digest}"
    return f"{column}={text}"


def value_text(value: object) -> str:
    """Return the text of a partition value that is not null."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def partition_values(path: str) -> dict[str, str | None]:
    """Return the values of the `key=value` directories in a path, by key; None for null."""
    pairs = (part.split("=", 1) for part in _parts(path))
    return {
        _unquoted(key): None if text == NULL_DIRECTORY else _unquoted(text) for key, text in pairs
    }


def partition_parts(path: str) -> int:
    """Return the number of `key=value` directories in a path. A key may occur twice."""
    return len(_parts(path))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/")[:-1] if "=" in part]


def _unquoted(text: str) -> str:
    """Return a text without percent-encoding; unchanged if the decoded bytes are not UTF-8."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text
