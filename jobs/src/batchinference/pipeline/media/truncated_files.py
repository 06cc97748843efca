"""Recognizes truncated files, and adds an end to truncated images so that decoders can read them.

A file is truncated if it is shorter than its container states. RIFF (WebP, AVI), Matroska (WebM)
and ASF (WMA, WMV) state the size of the file. CAF, Ogg and ISO files (MP4, AVIF, HEIC, JPEG 2000)
state the size of each chunk, page or box."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import BinaryIO

_MATROSKA, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_ASF = bytes.fromhex("3026b2758e66cf11")
_ASF_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_ASF_SIZE = 40
"""The offset of the size of an ASF file in its properties."""
_OGG_HEADER, _MAX_OGG_PAGE = 27, 65307
_OGG_FLAGS, _BEGIN_OF_STREAM, _END_OF_STREAM = 5, 2, 4
_CAF_HEADER = 8
_BOXES = (
    *(b"ftyp", b"moov", b"moof", b"mdat", b"mfra", b"free", b"skip", b"wide", b"meta", b"uuid"),
    *(b"pdin", b"styp", b"sidx", b"ssix", b"udta", b"jP  ", b"jp2h", b"jp2c"),
)
"""The top-level boxes of ISO files."""
_CHUNK_HEADER, _MIN_HEADER = 16, 8
"""The maximum and minimum bytes of the header of a box or chunk. The header states the size."""
_BLOCK, _MAX_READS = 1 << 16, 4096
"""The bytes per read to find the last box or chunk, and the maximum number of reads. In an object
store, each read is a request. One read suffices for all boxes that begin in its block."""
STREAMED = 0x7FFFF000
"""Stated sizes from this number on mean an unknown size, for example of a file made by a pipe."""
_HEAD_BYTES = 4096
_END_OF_JPEG, _SCAN_OF_JPEG = b"\xff\xd9", b"\xff\xda"
_FRAME_HEADER = 24
"""The bytes of a frame of an animated WebP file before its first chunk."""
_MAX_ADDED, _MARGIN = 64 << 20, 1 << 14
"""The maximum number of missing bytes that zeros replace. WebP files get _MARGIN more zeros,
because zeros may decode to fewer pixels than the missing bytes."""
ACCEPT = "Restore the file, or set truncated: accept to read what is left of it"


def truncation_error(source: BinaryIO, size: int) -> EOFError | None:
    """Return an error if the container of a file states more bytes than its `size`, else None."""
    stated = stated_size(source, size)
    source.seek(0)
    if stated is None or stated <= size:
        return None
    return EOFError(f"the end of the file is missing: it has {size} of {stated} bytes. {ACCEPT}")


def stated_size(source: BinaryIO, size: int) -> int | None:
    """Return the number of bytes that the container of a file states; None if it states no size.
    For Ogg, CAF and ISO files, the number is the end of the last page, chunk or box that begins in
    the file. `size` is the actual size."""
    head = _read_at(source, 0, _HEAD_BYTES)
    if head.startswith(b"RIFF"):
        stated = int.from_bytes(head[4:8], "little")
        return stated + 8 if 0 < stated < STREAMED else None
    if head.startswith(_MATROSKA):
        return _segment_end(head)
    if head.startswith(_ASF) and (at := head.find(_ASF_PROPERTIES)) > 0:
        return int.from_bytes(head[at + _ASF_SIZE : at + _ASF_SIZE + 8], "little")
    if head.startswith(b"OggS"):
        return _last_page_end(source, size)
    if head.startswith(b"caff"):
        return _last_end(source, _CAF_HEADER, _caf_chunk_size)
    return _last_end(source, 0, _box_size) if head[4:8] in _BOXES else None


def _read_at(source: BinaryIO, offset: int, size: int) -> bytes:
    source.seek(offset)
    return source.read(size)


def _segment_end(head: bytes) -> int | None:
    """Return the end of the segment of a Matroska file; None if it has no known size."""
    at = head.find(_SEGMENT) + len(_SEGMENT)
    if at < len(_SEGMENT) or at == len(head):
        return None
    width = 9 - head[at].bit_length()  # the leading zeros tell the number of bytes
    unknown = (1 << 7 * width) - 1
    value = int.from_bytes(head[at : at + width]) & unknown
    return None if value == unknown else at + width + value


def _last_page_end(source: BinaryIO, size: int) -> int | None:
    """Return the offset of the end of the last page that begins in an Ogg file; None if unknown."""
    begin = max(0, size - _MAX_OGG_PAGE)
    tail = _read_at(source, begin, _MAX_OGG_PAGE)
    page = tail.rfind(b"OggS")
    return None if page < 0 else begin + page + _ogg_page_size(tail, page)


def _ogg_page_size(text: bytes, at: int) -> int:
    """Return the size of the Ogg page at a position; less if the text ends in the page header."""
    body = at + _OGG_HEADER
    segments = text[body - 1] if len(text) >= body else 0
    return _OGG_HEADER + segments + sum(text[body : body + segments])


def is_chained_ogg(content: bytes) -> bool:
    """Return whether a second stream begins in an Ogg file after the first has ended (RFC 3533)."""
    at, ended = 0, False
    while content.startswith(b"OggS", at) and len(content) >= at + _OGG_HEADER:
        flags = content[at + _OGG_FLAGS]
        if ended and flags & _BEGIN_OF_STREAM:
            return True
        ended |= bool(flags & _END_OF_STREAM)
        at += _ogg_page_size(content, at)
    return False


def _last_end(source: BinaryIO, at: int, size_of: Callable[[bytes], int | None]) -> int | None:
    """Return the offset of the end of the last chunk that begins in a file; None if unknown. `at`
    is the offset of the first chunk. `size_of` returns the size of a chunk from its header."""
    for _ in range(_MAX_READS):
        begin, block = at, _read_at(source, at, _BLOCK)
        while at == begin or at - begin <= len(block) - _CHUNK_HEADER:
            head = block[at - begin :][:_CHUNK_HEADER]
            if len(head) < _MIN_HEADER:
                return at + _MIN_HEADER if head.strip(b"\0") else at
            if (size := size_of(head.ljust(_CHUNK_HEADER, b"\0"))) is None:
                return None
            at += size
    return None


def _box_size(head: bytes) -> int | None:
    size: int = struct.unpack_from(">I", head)[0]
    if size == 1:
        size = struct.unpack_from(">Q", head, 8)[0]
    return size if size >= 8 and head[4:8] in _BOXES else None


def _caf_chunk_size(head: bytes) -> int | None:
    size: int = struct.unpack_from(">q", head, 4)[0]
    return size + 12 if size >= 0 and head[:4].isalnum() else None


def is_truncated_animation(content: bytes) -> bool:
    """Return whether the end of a GIF file is missing, and with it possibly some frames."""
    return content.startswith(b"GIF8") and not content.rstrip(b"\0").endswith(b";")


def with_added_end(content: bytes) -> bytes:
    """Return the content of a truncated image with an added end, because some decoders need an end
    to read anything. Return the content unchanged if it needs no end, or lacks too many bytes."""
    if content.startswith(b"\xff\xd8"):
        scan = content.rfind(_SCAN_OF_JPEG)
        begin = scan + 2 + int.from_bytes(content[scan + 2 : scan + 4])
        return content + _END_OF_JPEG if scan > 0 and begin < len(content) else content
    missing = (stated_size(io.BytesIO(content), len(content)) or 0) - len(content)
    if not 0 < missing <= _MAX_ADDED:
        return content
    if content[8:12] == b"WEBP":
        return _stretched_webp(content, missing + _MARGIN)
    # the JPEG 2000 decoder needs this end; decoders of other formats ignore it
    return content + (bytes(missing - 2) + _END_OF_JPEG if missing > 2 else bytes(missing))


def _stretched_webp(content: bytes, added: int) -> bytes:
    """Return a WebP file with `added` zeros in its last chunk. The decoder accepts zeros in place
    of pixels, but no chunk without its end."""
    last = _last_chunk(content, 12)
    chunks = [0, last]
    if content[last : last + 4] == b"ANMF" and last + _FRAME_HEADER + 8 <= len(content):
        chunks.append(_last_chunk(content, last + _FRAME_HEADER))
    result = bytearray(content + bytes(added + (len(content) + added) % 2))
    for begin in chunks:
        struct.pack_into("<I", result, begin + 4, len(result) - begin - 8)
    return bytes(result)


def _last_chunk(content: bytes, at: int) -> int:
    """Return the offset of the last chunk that begins in a WebP file. Start at the chunk `at`."""
    while True:
        size: int = struct.unpack_from("<I", content, at + 4)[0]
        after = at + 8 + size + size % 2
        if after + 8 > len(content):
            return at
        at = after
