"""Names Hive partition directories (`day=2026-01-31`), and parses their names."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

from batchinference.pipeline.errors import JobFailure, UnwritableValue

NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
"""The text of the value null."""
MAX_NAME = 255
"""Maximum number of bytes of a directory name in file systems."""
SHORTENED, HASH_DIGITS = "~", 32
SHOWN = 80
"""Maximum number of characters of a directory name in a message."""
_CUT_ESCAPE = re.compile("%.?$")
"""Matches an incomplete percent-encoding at the end of a text that was cut."""


def directory_name(name: str, value: object) -> str:
    """Return the directory name for a value of a partition column. A long value is cut, and a hash
    is appended. Raises JobFailure if the name of the column is too long."""
    exact = _exact_name(name, value)
    if len(exact) <= MAX_NAME:
        return exact
    column, _, text = exact.partition("=")
    room = MAX_NAME - len(f"{column}={SHORTENED}") - HASH_DIGITS
    if room < 1:
        raise JobFailure(
            f"write.partitionBy: the name of column '{name}' is too long for a directory. Rename it"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
    return f"{column}={_CUT_ESCAPE.sub('', text[:room])}{SHORTENED}{digest}"


def check_has_name(name: str, value: object) -> None:
    """Raise UnwritableValue if a value of a partition column is too long for a directory name.
    Readers would get the cut value. Raises JobFailure if the name of the column is too long."""
    if directory_name(name, value) != (exact := _exact_name(name, value)):
        raise UnwritableValue(
            f"write.partitionBy: a value of column '{name}' is too long: the name of its directory "
            f"would have {len(exact)} bytes ({exact[:SHOWN]}...). Shorten it in a step, or choose "
            "another column"
        )


def _exact_name(name: str, value: object) -> str:
    text = NULL_DIRECTORY if value is None else quote(value_text(value), safe=" ")
    return f"{quote(name, safe='')}={text}"


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
