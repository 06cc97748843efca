"""Writes files of tf.train.Example records without TensorFlow."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MASK = 0xA282EAD8
POLYNOMIAL = 0x82F63B78


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


REMAINDERS = [_remainder(byte) for byte in range(256)]
"""The remainder of each byte's division by the polynomial of CRC-32C."""


def write_examples(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as records. Values are bytes, int or float, or lists of them."""
    content = b"".join(record(example(row)) for row in rows)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def record(content: bytes) -> bytes:
    """Return a record with its length and checksums."""
    length = struct.pack("<Q", len(content))
    return length + masked_crc(length) + content + masked_crc(content)


def example(row: dict[str, Any]) -> bytes:
    """Return a tf.train.Example in protobuf's wire format."""
    entries = (
        _field(1, name.encode())
        + _field(2, _feature(value if isinstance(value, list) else [value]))
        for name, value in row.items()
    )
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def masked_crc(content: bytes) -> bytes:
    """Return the masked CRC-32C that TFRecord files use."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = REMAINDERS[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF)


def _feature(values: list[Any]) -> bytes:
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return _field(1, b"".join(_field(1, value) for value in values))
    if isinstance(values[0], float):
        return _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
    return _field(3, _field(1, b"".join(_varint(value % 2**64) for value in values)))


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])
