"""Parses JSON, and adds checksums to the JSON of stored state. A corrupted number in the state
could otherwise cause an unnoticed loss of rows."""

from __future__ import annotations

import json
import zlib
from typing import Any

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

MAX_VALUES = 1 << 22
"""Maximum number of values in the JSON of a row. A short value needs more than 20 times the memory
of its JSON."""
CHECKSUM_FIELD = "crc32"
_SEPARATOR = f', "{CHECKSUM_FIELD}": '.encode()
START_OVER = (
    "start over: with resume: false, or with write.mode: overwrite if the output is complete"
)


def load_json(content: bytes | bytearray | str, **options: Any) -> Any:
    """Return the parsed JSON. `options` are those of `json.loads`. Raises ValueError if the JSON is
    invalid or nested too deep."""
    try:
        return json.loads(content, **options)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def load_limited_json(content: bytes | bytearray | str) -> Any:
    """Return the parsed JSON. Raises ValueError if it is invalid or may have more than MAX_VALUES
    values. Commas and opening brackets are counted before parsing, also within texts."""
    marks: Any = (",", "[", "{") if isinstance(content, str) else (b",", b"[", b"{")
    if sum(map(content.count, marks)) > MAX_VALUES:
        raise ValueError(f"the JSON has more than {MAX_VALUES} values. Split it into several")
    return load_json(content)


def dump_checksummed(state: dict[str, Any]) -> bytes:
    """Return the JSON of a state with a checksum as its last field."""
    content = json.dumps(state).encode()
    return content[:-1] + _SEPARATOR + b"%d}" % zlib.crc32(content)


def verify_checksum(content: bytes) -> None:
    """Raise ValueError if the JSON of a state does not match its checksum."""
    state, _, checksum = content.rpartition(_SEPARATOR)
    if checksum != b"%d}" % zlib.crc32(state + b"}"):
        raise ValueError("its checksum is wrong")


def damaged_state(file: Location) -> BadOutput:
    """Return the error for a state file that is missing, damaged or of another output."""
    return BadOutput(
        f"'{file.uri}' is missing, damaged or of another output, so the committed rows are "
        f"unknown. Restore it, or {START_OVER}"
    )
