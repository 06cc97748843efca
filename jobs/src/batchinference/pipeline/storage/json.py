"""Parses untrusted JSON within limits of nesting and size, and adds checksums to stored state.

Parsers are recursive: a line of 40 KB of brackets overflows the stack of pyarrow's parser and kills
the process. Without a checksum, a corrupted number in a state could lose rows unnoticed.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

MAX_DEPTH = 100
MAX_VALUES = 1 << 22
"""Maximum number of values of a document that is parsed without a memory limit. As a Python object,
a short value takes more than 20 times the memory of its JSON."""
_MARKS = b'[]{}"'
"""The bytes that determine the nesting."""
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in _MARKS)
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
SMALLER_DOCUMENTS = "Split it into smaller documents"
CHECKSUM_FIELD = "crc32"
_SEPARATOR = f', "{CHECKSUM_FIELD}": '.encode()
START_OVER = (
    "start over: with resume: false, or with write.mode: overwrite if the output is complete"
)


def load_json(content: bytes | bytearray | str) -> Any:
    """Return the parsed JSON. Raises ValueError if it is invalid or nested too deep."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def load_limited_json(
    content: bytes | bytearray | str, most: int | None = None, fix: str = SMALLER_DOCUMENTS
) -> Any:
    """Return the parsed JSON. Raises ValueError if it is invalid, or as `check_size` does."""
    check_size(content, most, fix)
    return load_json(content)


def check_size(
    content: bytes | bytearray | str, most: int | None = None, fix: str = SMALLER_DOCUMENTS
) -> None:
    """Raise ValueError if JSON may have more than `most` values (MAX_VALUES by default): its commas
    and opening brackets are counted before it is parsed. The message then ends with `fix`."""
    most = most or MAX_VALUES
    marks: Any = (",", "[", "{") if isinstance(content, str) else (b",", b"[", b"{")
    if sum(map(content.count, marks)) > most:
        raise ValueError(f"the JSON has more than {most} values. {fix}")


def dump_checksummed(state: dict[str, Any]) -> bytes:
    """Return the state with its checksum as the last field, as bytes to store."""
    content = json.dumps(state).encode()
    return content[:-1] + _SEPARATOR + b"%d}" % zlib.crc32(content)


def verify_checksum(content: bytes) -> None:
    """Raise ValueError if the stored bytes of a state do not match its checksum."""
    state, _, checksum = content.rpartition(_SEPARATOR)
    if checksum != b"%d}" % zlib.crc32(state + b"}"):
        raise ValueError("its checksum is another")


def damaged_state(place: Location) -> BadOutput:
    return BadOutput(
        f"'{place.uri}' is missing, damaged or of another output, so the committed rows are "
        f"unknown. Restore it, or {START_OVER}"
    )


def check_depth(content: bytes) -> None:
    """Raise ValueError if JSON is nested deeper than MAX_DEPTH. The measured depth of invalid JSON
    is correct up to the first error, which is as far as a parser gets."""
    if _depth(content) > MAX_DEPTH:
        fix = "Store the inner values as text"
        raise ValueError(f"JSON is nested deeper than {MAX_DEPTH} levels. {fix}")


def _depth(content: bytes) -> int:
    if b"\\" in content:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(content.translate(None, _OTHER_BYTES), np.uint8)
    in_text = np.cumsum(marks == ord('"'), dtype=np.int32) % 2 == 1
    steps = np.where(in_text, 0, _STEPS[marks])
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))
