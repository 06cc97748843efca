"""Recognizes files whose end is missing, and completes images so that their rest can be decoded.

Some containers state their size: RIFF (WebP, AVI), Matroska (WebM), and the boxes of ISO files
(MP4, AVIF, HEIC, JPEG 2000).
"""

from __future__ import annotations

import io
import struct
from typing import Protocol

_MATROSKA, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_BOXES = (b"ftyp", b"jP  ", b"moov", b"mdat", b"free", b"skip", b"wide")
_MAX_BOXES = 16
"""Maximum number of boxes that are followed. Each may be one request to an object store."""
STREAMED = 0x7FFFF000
"""Programs that write to a pipe state this size or a larger one, because they do not know it."""
_HEAD_BYTES = 64
_FRAME_HEADER = 24
"""The bytes of a frame of an animated WebP file before its first chunk."""
_MAX_ADDED, _MARGIN = 64 << 20, 1 << 14
"""Maximum number of bytes that are added to a file, and how many more than are missing: zeros may
decode to fewer pixels than the missing bytes."""
_END_OF_JPEG, _SCAN_OF_JPEG = b"\xff\xd9", b"\xff\xda"


class Source(Protocol):
    """An open file."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...


def missing_end(source: Source, size: int) -> ValueError | None:
    """Return an error if the end of a file of `size` bytes is missing, as far as its container
    states its size."""
    stated = stated_size(source)
    source.seek(0)
    if stated is None or stated <= size:
        return None
    return ValueError(f"the end of the file is missing: it has {size} of {stated} bytes")


def stated_size(source: Source) -> int | None:
    """Return the number of bytes that the container of a file states; None if it states none."""
    source.seek(0)
    head = source.read(_HEAD_BYTES)
    if head.startswith(b"RIFF") and len(head) == _HEAD_BYTES:
        size: int = struct.unpack_from("<I", head, 4)[0]
        return size + 8 if 0 < size < STREAMED else None
    if head.startswith(_MATROSKA):
        return _segment_end(head)
    return _last_box_end(source) if head[4:8] in _BOXES else None


def _segment_end(head: bytes) -> int | None:
    """Return the end of the segment of a Matroska file; None if it has no known size."""
    at = head.find(_SEGMENT) + len(_SEGMENT)
    if at < len(_SEGMENT) or at == len(head):
        return None
    width = 9 - head[at].bit_length()  # the leading zeros tell the number of bytes
    value = int.from_bytes(head[at : at + width]) & ((1 << 7 * width) - 1)
    unknown = (1 << 7 * width) - 1
    return None if value == unknown else at + width + value


def _last_box_end(source: Source) -> int | None:
    """Return the end of the last box that begins in a file; None if it is not stated."""
    end = 0
    for _ in range(_MAX_BOXES):
        source.seek(end)
        head = source.read(16)
        if len(head) < 8:
            return end
        size: int = struct.unpack_from(">I", head)[0]
        if size == 1 and len(head) == 16:
            size = struct.unpack_from(">Q", head, 8)[0]
        if size < 8 or not head[4:8].isascii():
            return None
        end += size
    return None


def completed(content: bytes) -> bytes:
    """Return the content of a cut image, with an end that lets its decoder read what is before it;
    unchanged if the decoder needs none, or if the end would be too large."""
    if content.startswith(b"\xff\xd8"):
        scan = content.rfind(_SCAN_OF_JPEG)
        begin = scan + 2 + int.from_bytes(content[scan + 2 : scan + 4])
        return content + _END_OF_JPEG if 0 < scan and begin < len(content) else content
    missing = (stated_size(io.BytesIO(content)) or 0) - len(content)
    if not 0 < missing <= _MAX_ADDED:
        return content
    if content[8:12] == b"WEBP":
        return _stretched_webp(content, missing + _MARGIN)
    # JPEG 2000 needs an end, and other decoders ignore the last bytes
    return content + (bytes(missing - 2) + _END_OF_JPEG if missing > 2 else bytes(missing))


def _stretched_webp(content: bytes, added: int) -> bytes:
    """Return a WebP file whose last chunk is longer by `added` zeros: the decoder fails at the end
    of a chunk, but not if it reads zeros."""
    last = _last_chunk(content, 12)
    chunks = [0, last]
    if content[last : last + 4] == b"ANMF" and last + _FRAME_HEADER + 8 <= len(content):
        chunks.append(_last_chunk(content, last + _FRAME_HEADER))
    result = bytearray(content + bytes(added + (len(content) + added) % 2))
    for begin in chunks:
        struct.pack_into("<I", result, begin + 4, len(result) - begin - 8)
    return bytes(result)


def _last_chunk(content: bytes, at: int) -> int:
    """Return the offset of the last chunk that begins in a file. `at` is the offset of a chunk."""
    while True:
        size: int = struct.unpack_from("<I", content, at + 4)[0]
        after = at + 8 + size + size % 2
        if after + 8 > len(content):
            return at
        at = after
