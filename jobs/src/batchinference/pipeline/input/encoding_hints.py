"""Recognizes text files that have another encoding than the job says."""

from __future__ import annotations

import codecs
import re

from batchinference.pipeline.errors import BadInput

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The encodings of byte order marks. That of UTF-32-LE begins with that of UTF-16-LE."""
_BEGINNING, _LINES_BYTES = 1 << 12, 1 << 20
_WESTERN_LETTER = re.compile(rb"[A-Za-z][\xc0-\xff]")
_SINGLE_BYTES = ("cp125", "iso8859")
_SURE_LINES = 2
"""One line that is not UTF-8 may be damaged; so many are text of another encoding."""
_SURE_BYTES = 2
"""So many continuation bytes of UTF-8, and no invalid byte, are no text of single bytes."""


def check_encoding(uri: str, sample: bytes, encoding: str) -> None:
    """Raise BadInput if the beginning of a file is in another encoding."""
    if hint := _hint(sample, encoding):
        raise BadInput(f"read.options.encoding: {uri} {hint}")


def _hint(sample: bytes, encoding: str) -> str | None:
    """Return what is wrong, and the encoding to set; None if the encoding may be right."""
    name = codecs.lookup(encoding).name
    if name == "utf-8":
        return _hint_of_marks(sample) or _hint_of_bytes(sample)
    beginning = sample[:_BEGINNING]
    wide = name.startswith(("utf-16", "utf-32")) and beginning and b"\0" not in beginning
    if wide and _is_utf8(beginning):
        return f"is utf-8, and not {encoding}. Set it to utf-8"
    if name.startswith(_SINGLE_BYTES) and _is_utf8(sample):
        continued = len(sample) - len(sample.decode(errors="replace"))
        if continued >= _SURE_BYTES:
            return f"is utf-8, and not {encoding}. Set it to utf-8"
    return None


def _hint_of_marks(sample: bytes) -> str | None:
    for mark, encoding in _MARKS.items():
        if sample.startswith(mark):
            return f"has the byte order mark of {encoding}. Set it to {encoding}"
    beginning = sample[:_BEGINNING]
    first, second = beginning[::2].count(0), beginning[1::2].count(0)
    if max(first, second) * 3 > len(beginning):
        encoding = "utf-16-be" if first > second else "utf-16-le"
        return f"has zeros as every second byte. Set it to {encoding}"
    return None


def _hint_of_bytes(sample: bytes) -> str | None:
    lines = [line for line in sample[:_LINES_BYTES].split(b"\n") if not line.isascii()]
    invalid = [line for line in lines if not _is_utf8(line + b"\n")]
    western = [line for line in invalid if _WESTERN_LETTER.search(line)]
    if len(western) >= _SURE_LINES and 2 * len(western) > len(lines):
        return f"is not utf-8, but probably cp1252 ({western[0][:40]!r}). Set it to cp1252"
    return None


def _is_utf8(text: bytes) -> bool:
    """Return whether a text is UTF-8, except for a character that is cut at its end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True
