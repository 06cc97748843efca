"""Damages files: at random, and with knowledge of their format."""

from __future__ import annotations

import gzip
import io
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from support.fuzzing.seeds import DAMAGED, Target

TOKENS = (
    *(b"[" * 300, b"[" * 100_000, b'{"a":' * 30_000, b"]" * 200, b'"', b'\\"', b"\\", b"\0" * 64),
    *(b"\n", b"\r\n", b",", b"," * 5000, b"null", b"-", b"1" * 5000, b"1e999999", b"\xff\xfe"),
    *(b"\xef\xbb\xbf", b"a" * 70_000, b"\xed\xa0\x80", b"true", b"{}\n" * 500, b"[],", b"http:/"),
)
EXTREMES = (0, 1, 127, 128, 255, 2**15 - 1, 2**15, 2**16 - 1, 2**24, 2**28, 2**31 - 1, 2**31,
            2**32 - 1, 2**36, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
HEADERS = (
    "<f8",
    "|S0",
    "<U0",
    "|V0",
    "|O",
    "<U1000000000",
    "|S3",
    "[('a', '<i4')]",
    "<M8[ns]",
    "|b1",
)
SHAPES = (
    *("()", "(0,)", "(4, 6)", "(1000000000000,)", "(1000000000000, 0)", "(0, 1000000000000)"),
    *("(-1,)", "(4, -6)", "(" * 300 + ")" * 300, "(" + "-" * 5000 + "1,)", f"({2**64},)"),
)

Change = Callable[[random.Random, bytes, list[bytes]], bytes]


def flip(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    damaged = bytearray(content)
    for _bit in range(chance.choice((1, 1, 2, 8, 64))):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def extreme(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    """Overwrite 1 to 8 bytes with a very large number or a very small one."""
    size = chance.choice((1, 2, 4, 4, 8))
    number = chance.choice(EXTREMES) % 2 ** (8 * size)
    near = chance.choice((64, 512, len(content)))  # headers are at the beginning
    place = chance.randrange(max(1, min(near, len(content))))
    if chance.random() < 0.2:
        place = max(0, len(content) - place)  # or at the end
    encoded = number.to_bytes(size, chance.choice(("little", "big")))
    return content[:place] + encoded + content[place + size :]


def truncate(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    return content[: chance.randrange(len(content))]


def duplicate(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    start, stop = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    place, times = chance.randrange(len(content) + 1), chance.choice((1, 1, 2, 50))
    return content[:place] + content[start:stop][:4096] * times + content[place:]


def delete(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    start, stop = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + content[min(stop, start + chance.choice((1, 4, 64, 4096))) :]


def splice(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    other = chance.choice(others)
    return content[: chance.randrange(len(content) + 1)] + other[chance.randrange(len(other) + 1) :]


def token(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice(TOKENS) + content[place + chance.choice((0, 0, 1, 4)) :]


GENERAL: tuple[Change, ...] = (flip, extreme, truncate, duplicate, delete, splice, token)
WITHIN: tuple[Change, ...] = (flip, extreme, extreme, token, duplicate, delete)


def _any(chance: random.Random, content: bytes) -> bytes:
    return chance.choice(WITHIN)(chance, content, [content]) if content else content


def chunks(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    """Damage a PNG, with correct checksums."""
    if not content.startswith(b"\x89PNG"):
        return extreme(chance, content, [])
    made, start = [], 8
    while start + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, start)
        made.append((content[start + 4 : start + 8], content[start + 8 : start + 8 + length]))
        start += 12 + length
    chosen = chance.randrange(len(made))
    made[chosen] = (made[chosen][0], _any(chance, made[chosen][1]))
    if chance.random() < 0.2:  # a black picture that really has its declared size
        width, height = (chance.choice((1, 100, 5000, 20000)) for _ in range(2))
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        black = zlib.compress(bytes(min((width + 1) * height, 1 << 26)), 1)
        made = [(b"IHDR", header), (b"IDAT", black), (b"IEND", b"")]
    parts = (struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
             for kind, body in made)  # fmt: skip
    return content[:8] + b"".join(parts)


def arrays(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Damage an array that has a well-formed header, or one member of an archive of arrays."""
    if not content.startswith(b"PK"):
        return _array(chance, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = chance.choice(list(members))
    change = chance.choice((_array, _any, _zeros))
    members[chosen] = change(chance, members[chosen])
    made = io.BytesIO()
    packing = chance.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(made, "w", packing, compresslevel=1) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return made.getvalue()


def _array(chance: random.Random, content: bytes) -> bytes:
    descr = chance.choice(HEADERS)
    text = (
        f"{{'descr': {descr if descr.startswith('[') else repr(descr)}, 'fortran_order': "
        f"{chance.choice((True, False))}, 'shape': {chance.choice(SHAPES)}, }}\n"
    ).encode()
    version, size = chance.choice(((1, 2), (2, 4), (3, 4), (9, 4)))
    length = len(text) if chance.random() < 0.8 else chance.choice(EXTREMES) % 2 ** (8 * size)
    length = min(length, 2 ** (8 * size) - 1)
    header = b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(size, "little") + text
    return header + content[128:]


def _zeros(chance: random.Random, content: bytes) -> bytes:
    large = chance.random() < 0.2  # compressing many of them would take most of the time
    return content + bytes(1 << 26 if large else 1 << 16)


def members(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Damage a header of a tar archive, with a correct checksum."""
    packed = content.startswith(b"\x1f\x8b")
    damaged = bytearray(zlib.decompress(content, 31) if packed else content)
    starts = [place for place in range(0, len(damaged) - 511, 512)
              if damaged[place + 257 : place + 262] == b"ustar"]  # fmt: skip
    if starts:
        place = chance.choice(starts)
        _header(chance, damaged, place)
        damaged[place + 148 : place + 156] = b" " * 8
        checksum = sum(damaged[place : place + 512])
        damaged[place + 148 : place + 156] = b"%06o\0 " % checksum
    if chance.random() < 0.1:
        damaged[1024:1024] = bytes(chance.choice((1 << 20, 1 << 26)))
    return gzip.compress(bytes(damaged), 1) if packed or len(damaged) > 1 << 20 else bytes(damaged)


def _header(chance: random.Random, archive: bytearray, place: int) -> None:
    size = chance.choice((b"%011o\0" % (chance.choice(EXTREMES) % 8**11),
                          b"\x80" + (chance.choice(EXTREMES)).to_bytes(11, "big"),
                          b"\xff" * 11 + bytes([chance.choice((0, 1, 255))])))  # fmt: skip
    if chance.random() < 0.6:
        archive[place + 124 : place + 136] = size
    if chance.random() < 0.5:
        kinds = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME,
                 tarfile.GNUTYPE_SPARSE, tarfile.LNKTYPE, tarfile.DIRTYPE, b"\0", b"Z")  # fmt: skip
        archive[place + 156 : place + 157] = chance.choice(kinds)
    if chance.random() < 0.3:
        archive[place : place + 20] = chance.choice(TOKENS)[:20].ljust(20, b"\0")


def packed(chance: random.Random, content: bytes, _: list[bytes]) -> bytes:
    """Damage lines before they are compressed."""
    if not content.startswith(b"\x1f\x8b"):
        return token(chance, content, [])
    inside = zlib.decompress(content, 31)
    if chance.random() < 0.1:
        place = chance.randrange(len(inside) + 1)
        inside = (
            inside[:place] + chance.choice((b" ", b"a", b"[", b'"')) * (1 << 26) + inside[place:]
        )
    return gzip.compress(_any(chance, inside), 1)


OF_FORMAT: dict[str, tuple[Change, ...]] = {
    "images": (chunks,),
    "numpy": (arrays,),
    "webdataset": (members,),
    "text": (token,),
    "json": (token, packed),
    "csv": (token,),
    "manifest": (token,),
}


def damaged(chance: random.Random, format_: str, content: bytes, others: list[bytes]) -> bytes:
    """Return the file's content after one or a few random changes."""
    own = OF_FORMAT.get(format_, ())
    if own and chance.random() < 0.5:
        content = chance.choice(own)(chance, content, others)
        if chance.random() < 0.7:
            return content
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if content:
            content = chance.choice(GENERAL)(chance, content, others)
    return content


def damaged_file(target: Target, directory: Path, seed: int, number: int) -> Path:
    """Write the damaged file with this number next to the valid ones, and return its path. A
    manifest names existing files."""
    chance = random.Random(f"{target.format} {seed} {number}")
    ending, content = chance.choice(target.files)
    path = directory / "seeds" / f"{DAMAGED}.{ending}"
    contents = [content for _, content in target.files]
    path.write_bytes(damaged(chance, target.format, content, contents))
    return path
