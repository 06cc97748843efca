"""Reads gzip streams as the program gzip does. pyarrow rejects zeros after the end, with which some
programs and tapes fill the last block."""

from __future__ import annotations

import io
import zlib
from typing import IO

_BLOCK_BYTES = 1 << 16
_GZIP = 31
"""The parameter `wbits` of zlib for the gzip format."""


class GzipStream(io.RawIOBase):
    """The decompressed content of a stream of gzip members. Damage is an OSError."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._member: zlib._Decompress | None = None
        self._packed = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
        super().close()

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while packed := self._packed or self._source.read(_BLOCK_BYTES):
            content = self._unpacked(packed, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)
        if self._member and not self._member.eof:
            raise OSError("the gzip stream ends too early")
        return 0

    def _unpacked(self, packed: bytes, most: int) -> bytes:
        """Return at most so many bytes of content. Keeps the packed bytes that are left."""
        if self._member is None:
            self._member = zlib.decompressobj(_GZIP)
        elif self._member.eof:
            packed = packed.lstrip(b"\0")
            self._packed = b""
            if not packed:
                return b""
            self._member = zlib.decompressobj(_GZIP)
        try:
            content = self._member.decompress(packed, most)
        except zlib.error as error:
            raise OSError(f"the gzip stream is damaged: {error}") from None
        self._packed = self._member.unconsumed_tail or self._member.unused_data
        return content
