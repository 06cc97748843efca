"""Recognizes the format of a file by its first bytes."""

from __future__ import annotations

import codecs
import re
import zlib

HEAD_BYTES = 4096
"""The number of first bytes that suffice to recognize a format."""


def packed_as(head: bytes) -> str | None:
    """Return what a file with these first bytes is, and the fix; None if it may be text."""
    return next((format_ for start, format_ in _PACKED.items() if re.match(start, head)), None)


_PACKED = {
    rb"\x1f\x8b\x08": "compressed with gzip. Let its name end with .gz",
    rb"BZh[1-9]1AY&SY": "compressed with bzip2. Let its name end with .bz2",
    rb"\x28\xb5\x2f\xfd": "compressed with Zstandard. Let its name end with .zst",
    rb"\x04\x22\x4d\x18": "compressed with LZ4. Let its name end with .lz4",
    rb"\xfd7zXZ\0": "compressed with xz. Unpack it",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive. Unpack it",
    rb"PK\x03\x04": "a zip archive or a workbook. Unpack it, or export the workbook as CSV",
    rb"version https://git-lfs": "a pointer of Git LFS. Run 'git lfs pull'",
    rb"PAR1\x15": "a Parquet file. Read it with the format parquet",
}


def no_csv(head: bytes) -> str | None:
    """Return what a file with these first bytes is, and the fix; None if it may be CSV."""
    if HTML.match(head):
        return "an HTML page, perhaps about an error. Download the file again"
    if re.match(rb'\s*\{"[^"]*"\s*:', head):
        return "JSON. Set read.format to json"
    return packed_as(head)


def no_json(head: bytes) -> str | None:
    """Return what a file with these first bytes is, and the fix; None if it may be JSON."""
    is_text = head.strip() and b"\0" not in head
    is_other = is_text and not re.search(rb"(?m)^(\xef\xbb\xbf)?\s*[\[{]", head)
    return packed_as(head) or (_other_than("JSON", head) if is_other else None)


def no_parquet(head: bytes) -> str:
    """Return what a file with these first bytes is instead of Parquet, and the fix."""
    return packed_as(head) or _other_than("Parquet file", head)


def _other_than(format_: str, head: bytes) -> str:
    fix = "Correct read.format"
    if re.match(rb"\s*[\[{]", head):
        fix = "Set read.format to json"
    elif _has_columns(head):
        fix = "Set read.format to csv"
    return f"no {format_} ({head[:16]!r}...). {fix}"


def _has_columns(head: bytes) -> bool:
    """Return whether the bytes are text with as many delimiters in line 1 as in another line."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    first, *others = text.splitlines() or [""]
    counts = ((first.count(sign), [line.count(sign) for line in others]) for sign in ",;\t|")
    return "\0" not in text and any(count and count in later for count, later in counts)


def is_parquet(head: bytes) -> bool:
    """Return whether a file with these first bytes is an unencrypted Parquet file."""
    return head.startswith(b"PAR1")


def is_image(head: bytes) -> bool:
    """Return whether a file with these first bytes is a picture."""
    riff = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    bitmap = head[:2] == b"BM" and head[14:18] in _BITMAP_HEADERS
    starts = head.startswith(_PICTURES) or _PNM.match(head)
    return bool(riff or bitmap or starts) or "avif" in _brands(head)


_PICTURES = (
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a"),
    *(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),  # TIFF
    *(b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"),  # JPEG 2000
)
_BITMAP_HEADERS = {size.to_bytes(4, "little") for size in (12, 40, 52, 56, 64, 108, 124)}
_PNM = re.compile(rb"P[1-6]\s+(#[^\n]*\n\s*)*\d+\s")


def _brands(head: bytes) -> set[str]:
    """Return the brands in the `ftyp` box of an MP4, HEIC or AVIF file; empty for others."""
    if head[4:8] != b"ftyp":
        return set()
    ftyp = head[: int.from_bytes(head[:4], "big")]
    starts = (8, *range(16, len(ftyp), 4))
    return {ftyp[start : start + 4].decode("latin-1").strip().lower() for start in starts}


def is_heif(head: bytes) -> bool:
    """Return whether a file with these first bytes is a HEIC picture."""
    return not _brands(head).isdisjoint(("heic", "heix", "heim", "heis", "mif1"))


def is_audio(head: bytes) -> bool:
    """Return whether a file with these first bytes has sound and no pictures."""
    if head.startswith((b"fLaC", b"ID3", b".snd", b"caff\0\1", b"riff\x2e\x91\xcf\x11", b"#!AMR")):
        return True
    if head[8:12] in (b"WAVE", b"AIFF", b"AIFC"):
        return head[:4] in (b"RIFF", b"RF64", b"FORM")
    if head.startswith(b"OggS"):
        return b"theora" not in head[:512]
    if head.startswith(_EBML):
        return b"A_" in head and b"V_" not in head
    if brands := _brands(head):
        tracks = b"soun" in head and b"vide" not in head
        return tracks or any(brand.startswith(("m4a", "m4b", "m4p")) for brand in brands)
    return _is_mpeg_audio(head)


def _is_mpeg_audio(head: bytes) -> bool:
    """Return whether the bytes begin with a frame of MP3 or AAC."""
    if len(head) < 4 or head[0] != 0xFF:
        return False
    mp3 = head[1] & 0xE6 == 0xE2 and head[2] >> 4 not in (0, 15) and head[2] & 0x0C != 0x0C
    return mp3 or (head[1] & 0xF6 == 0xF0 and head[2] & 0x3C < 0x34)


_EBML = b"\x1a\x45\xdf\xa3"


def is_video(head: bytes) -> bool:
    """Return whether a file with these first bytes is a film."""
    if is_audio(head) or is_image(head) or is_heif(head):
        return False
    stream = len(head) > 2 * 188 and head[0] == head[188] == head[376] == 0x47
    avi = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    atom = head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide")
    theora = head.startswith(b"OggS") and b"theora" in head[:512]
    return stream or avi or atom or theora or head.startswith(_FILMS)


_FILMS = (
    *(_EBML, b"\0\0\1\xba", b"\0\0\1\xb3", b"FLV\1", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    b"\x06\x0e\x2b\x34\x02\x05\x01\x01",
)


def is_numpy(head: bytes) -> bool:
    """Return whether a file with these first bytes is a NumPy file."""
    if head.startswith(b"\x93NUMPY"):
        return True
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return head.startswith(b"PK\3\4") and name.endswith(b".npy")


def is_tar(head: bytes) -> bool:
    """Return whether a file with these first bytes is a tar archive, which may be gzipped."""
    return _unpacked(head)[257:262] == b"ustar"


def _unpacked(head: bytes) -> bytes:
    """Return the first bytes of a file, decompressed if they are gzip; empty if damaged."""
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        return zlib.decompressobj(31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return b""


def is_document(head: bytes) -> bool:
    """Return whether a file with these first bytes is a document of the format `documents`."""
    if PDF.match(head) or HTML.match(head) or MAIL.match(head):
        return True
    return head.startswith(b"PK\3\4") and (b"word/" in head or b"ppt/" in head)


PDF = re.compile(rb"(?s).{0,1019}%PDF-")
HTML = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(<!--((?!-->).)*-->\s*)*<(!doctype\s+html|html\b)",
    re.IGNORECASE | re.DOTALL,
)
MAIL = re.compile(
    rb"((received|return-path|delivered-to|from|to|date|subject|message-id|mime-version|x-[\w-]+)"
    rb":[^\n]*\n([ \t][^\n]*\n)*){2}",
    re.IGNORECASE,
)
