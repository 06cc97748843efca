"""Recognizes rows and files that are no JSON Lines, and says what is wrong with them."""

from __future__ import annotations

import codecs
import json
import re
from contextlib import suppress

from batchinference.pipeline.input.signatures import packed_as

ARRAY = "a file that is one array is read with read.options.lines: false"
NULL_ROW = "a row of the line is null, and must be an object"
_NEXT_OBJECT = re.compile(rb"(?<=\})\s*\n\s*(?=\{)")
"""What separates two objects that are not on one line each. Within an object, there is a comma."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_NULL_FIRST = re.compile(rb"(?:\xef\xbb\xbf|\s)*null")
_MAYBE_NULL = re.compile(rb"[}\n][ \t\r]*null\b")
"""Matches what may be a row that is null, or the value null within a row or a text."""
_SPACE = re.compile(r"\s*")
_KINDS = {"[": "array", '"': "text", "n": "null", "t": "boolean", "f": "boolean"}
"""The kind of a JSON value that is no object, by its first character. Any other is a number."""


def spans_lines(content: bytes) -> bool:
    """Return whether JSON begins with an array or an object that ends on a later line.

    Raises ValueError if it is UTF-16, or compressed."""
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if found := "UTF-16. Convert it to UTF-8" if wide else packed_as(content):
        raise ValueError(f"the file is {found}")
    first, _, rest = content.lstrip().partition(b"\n")
    first, next_mark = first.rstrip(), rest.lstrip()[:1]
    if not first.startswith(b"{"):
        return first.startswith(b"[") and not first.endswith(b"]")
    # in an object, a brace cannot follow a brace or a comma: then the first line is damaged
    return first.endswith((b"[", b":")) or (first.endswith((b"{", b",")) and next_mark != b"{")


def as_lines(content: bytes) -> bytes:
    """Return objects that span lines as JSON Lines. Raises ValueError for an array."""
    if content.lstrip().startswith(b"["):
        raise ValueError(f"the file is one JSON array over several lines: {ARRAY}")
    return b"\n".join(map(_as_line, _NEXT_OBJECT.split(content)))


def _as_line(row: bytes) -> bytes:
    # in a text, a line end is as invalid as a tab, and must not become a space
    row = _TEXT.sub(lambda text: re.sub(rb"[\r\n]", b"\t", text[0]), row)
    return b" ".join(row.splitlines())


def explained(error: ValueError, line: str) -> ValueError:
    """Return the error of a line that cannot be parsed, with a cause that users know."""
    if line.startswith("{"):
        comma = line.endswith("},")
        return ValueError(f"the line ends with a comma. Remove it ({error})") if comma else error
    with suppress(ValueError, RecursionError):
        json.loads(line)
        kind = _KINDS.get(line[0], "number")
        hint = f": {ARRAY}" if kind == "array" else ""
        return ValueError(f"the line is a JSON {kind}, and must be an object{hint}")
    return ValueError(f"the line is no JSON object ({error})")


def begins_with_null(rows: bytes) -> bool:
    """Return whether the first row begins with null."""
    return bool(_NULL_FIRST.match(rows))


def has_null(rows: bytes) -> bool:
    """Return whether one of the rows is null, or may be null because some of several lines are
    invalid."""
    if b"null" not in rows or not _MAYBE_NULL.search(rows):
        return False
    text = rows.decode().strip()
    decode, place = json.JSONDecoder(strict=False).raw_decode, 0
    try:
        while place < len(text):
            row, end = decode(text, place)
            if row is None:
                return True
            place = _SPACE.match(text, end).end()  # type: ignore[union-attr] # it always matches
    except ValueError:
        return "\n" in text
    return False
