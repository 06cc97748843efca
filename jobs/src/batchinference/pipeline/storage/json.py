"""Parses JSON, and adds checksums to stored state. Without one, a corrupted number in a state could
lose rows unnoticed."""

from __future__ import annotations

import json
import zlib
from typing import Any

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

MAX_VALUES = 1 << 22
"""Maximum number of values of a document that is parsed without a memory limit. As a Python object,
a short value takes more than 20 times the memory of its JSON."""
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
