"""State as JSON with a checksum: a number in it that has changed would cost rows unnoticed."""

from __future__ import annotations

import json
import zlib
from typing import Any

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

SEAL = "crc32"


def load_json(content: bytes) -> Any:
    """What is stored. Raises ValueError for what is no JSON, or no such that anybody has stored."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def dump_checksummed(state: dict[str, Any]) -> bytes:
    """The bytes to store."""
    return json.dumps({**state, SEAL: _checksum(state)}).encode()


def load_checksummed(stored: dict[str, Any]) -> dict[str, Any]:
    """The state without its checksum."""
    return {name: value for name, value in stored.items() if name != SEAL}


def verify_checksum(stored: dict[str, Any]) -> None:
    """Raise ValueError unless what was read is what was stored."""
    try:
        there = _checksum(load_checksummed(stored))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if stored.get(SEAL) != there:
        raise ValueError("its checksum is another")


def _checksum(state: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(state).encode())


def damaged_state(place: Location) -> BadOutput:
    return BadOutput(
        f"'{place.uri}' is gone, damaged or another output's, so what is done cannot be told: put "
        f"it back, or {START_OVER}"
    )


START_OVER = (
    "begin anew: with resume: false, or where the output is complete with write.mode: overwrite"
)
