"""Converts text of any encoding to UTF-8, for libraries that read UTF-8 only.

Bytes that are invalid in their encoding become INVALID, which is not valid UTF-8 either. So a
reader finds them at their place, and only their row fails."""

from __future__ import annotations

import codecs
import io
from typing import IO

INVALID = b"\xed\xb3\xbf"
_HANDLER = "batchinference.invalid"
_BLOCK_BYTES = 1 << 20


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(_HANDLER, _replaced)


class Utf8Converter:
    """Converts consecutive parts of a text to UTF-8."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(_HANDLER)

    def __call__(self, content: bytes, *, final: bool = False) -> bytes:
        """Return a part in UTF-8. A character that may be incomplete is kept for the next part,
        unless the part is `final`."""
        return self._decoder.decode(content, final).encode("utf-8", "surrogatepass")


class Utf8Stream(io.RawIOBase):
    """The content of a stream in UTF-8."""

    def __init__(self, source: IO[bytes], encoding: str) -> None:
        self._source, self._convert = source, Utf8Converter(encoding)
        self._ready, self._ended = b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not (self._ready or self._ended):
            content = self._source.read(_BLOCK_BYTES)
            self._ended = not content
            self._ready = self._convert(content, final=self._ended)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def is_utf8(encoding: str) -> bool:
    """Return whether a name of an encoding means UTF-8."""
    return codecs.lookup(encoding).name == "utf-8"
