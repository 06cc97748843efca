"""Detects text files that have another encoding than the job sets, and converts text to UTF-8.

Bytes that are invalid in the encoding are converted to bytes that are invalid in UTF-8. So a reader
that decodes the rows fails only the row with these bytes."""

from __future__ import annotations

import codecs
import io
import re

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.signatures import packed_as

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by byte order mark. UTF-32 is first, because its mark begins with that of UTF-16."""
_HEAD_BYTES, _LINES_BYTES = 1 << 12, 1 << 20
"""How many first bytes of a file are searched for zeros, and for lines that are not UTF-8."""
_UTF16_BYTES = 4
"""A shorter text with zeros is more likely a damaged text than one in UTF-16."""
_LETTER = re.compile(rb"[A-Za-z][\xc0-\xff]")
_SINGLE_BYTES = ("cp125", "iso8859")
_HANDLER = "batchinference.invalid"
_SURE_LINES = 2
"""At least this many lines that are not UTF-8 can mean another encoding. Fewer may be damaged."""
_SURE_BYTES = 2
"""Valid UTF-8 with at least this many continuation bytes is no text in a single-byte encoding."""


def check_encoding(uri: str, sample: bytes, encoding: str, *, adjustable: bool = True) -> None:
    """Raise BadInput if the beginning of a file is no text, has another encoding, or lacks a byte
    order mark. `adjustable` tells whether the user can set the encoding."""
    if format_ := packed_as(sample):
        raise BadInput(f"read.paths: {uri} is {format_}")
    if problem := _problem(sample, encoding):
        text, fitting = problem
        if adjustable:
            raise BadInput(f"read.options.encoding: {uri} {text}. Set it to {fitting}")
        raise BadInput(f"read.paths: {uri} {text}. Convert it to UTF-8")


def check_beginning(head: bytes, encoding: str) -> None:
    """Raise ValueError if a file with these first bytes is not text. Also raise ValueError if its
    encoding needs a byte order mark that the file lacks."""
    if format_ := packed_as(head):
        raise ValueError(f"the file is {format_}")
    if problem := _missing_mark(head, encoding):
        text, fitting = problem
        raise ValueError(f"the file {text}. Set read.options.encoding to {fitting}")


def _problem(sample: bytes, encoding: str) -> tuple[str, str] | None:
    """Return what is wrong, and which encoding to set; None if the encoding may be right."""
    name = codecs.lookup(encoding).name
    if name == "utf-8":
        return _not_utf8_by_mark(sample) or _not_utf8_by_bytes(sample)
    beginning = sample[:_HEAD_BYTES]
    wide = name.startswith(("utf-16", "utf-32")) and beginning and b"\0" not in beginning
    if wide and _is_utf8(beginning):
        return f"is utf-8, and not {encoding}", "utf-8"
    if name.startswith(_SINGLE_BYTES) and _is_utf8(sample):
        continued = len(sample) - len(sample.decode(errors="replace"))
        if continued >= _SURE_BYTES:
            return f"is utf-8, and not {encoding}", "utf-8"
    return _missing_mark(sample, encoding)


def _missing_mark(head: bytes, encoding: str) -> tuple[str, str] | None:
    name = codecs.lookup(encoding).name
    marks = tuple(mark for mark, marked in _MARKS.items() if marked == name)
    if not marks or not head or head.startswith(marks):
        return None
    order = _byte_order(head[:_HEAD_BYTES])
    return "has no byte order mark", f"{name}-{order}" if order else f"{name}-le or {name}-be"


def _byte_order(beginning: bytes) -> str | None:
    """Return the byte order (le or be) of UTF-16 with much ASCII text; None for other text."""
    if len(beginning) < _UTF16_BYTES:
        return None
    first, second = beginning[::2].count(0), beginning[1::2].count(0)
    if max(first, second) * 3 <= len(beginning) or min(first, second) * 6 > len(beginning):
        return None
    return "be" if first > second else "le"


def _not_utf8_by_mark(sample: bytes) -> tuple[str, str] | None:
    for mark, encoding in _MARKS.items():
        if sample.startswith(mark):
            return f"has the byte order mark of {encoding}", encoding
    if order := _byte_order(sample[:_HEAD_BYTES]):
        return "has zeros as every second byte", f"utf-16-{order}"
    return None


def _not_utf8_by_bytes(sample: bytes) -> tuple[str, str] | None:
    lines = [line for line in sample[:_LINES_BYTES].split(b"\n") if not line.isascii()]
    invalid = [line for line in lines if not _is_utf8(line + b"\n")]
    foreign = [line for line in invalid if _LETTER.search(line)]
    if len(foreign) >= _SURE_LINES and 2 * len(foreign) > len(lines):
        return f"is not utf-8 ({foreign[0][:40]!r})", "its encoding, such as cp1252, cp1250 or gbk"
    return None


def _is_utf8(text: bytes) -> bool:
    """Return whether a text is UTF-8. The last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Return a lone surrogate, which is invalid in UTF-8, for invalid bytes."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(_HANDLER, _replaced)


class Utf8Converter:
    """Converts consecutive parts of a text to UTF-8."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(_HANDLER)

    def __call__(self, content: bytes, *, final: bool = False) -> bytes:
        """Return the next part in UTF-8. If it is not the `final` part, the next call returns an
        incomplete character at its end."""
        return self._decoder.decode(content, final).encode("utf-8", "surrogatepass")


class Utf8Stream(io.RawIOBase):
    """The content of the stream `source` in UTF-8, converted in blocks of `block_bytes` bytes."""

    def __init__(self, source: io.BufferedReader, encoding: str, block_bytes: int) -> None:
        self._source, self._convert = source, Utf8Converter(encoding)
        self._block_bytes, self._ready, self._ended = block_bytes, b"", False

    def readable(self) -> bool:
        """Return True, because the stream can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Write the next bytes in UTF-8 into `buffer`, and return their number; 0 at the end."""
        while not (self._ready or self._ended):
            content = self._source.read1(self._block_bytes)
            self._ended = not content
            self._ready = self._convert(content, final=self._ended)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
