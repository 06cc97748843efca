"""JSON state with a checksum. Without it, a corrupted number could lose rows unnoticed."""

from __future__ import annotations

import json
import zlib
from typing import Any

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

SEAL = "crc32"
_SEPARATOR = f', "{SEAL}": '.encode()
START_OVER = (
    "start over: with resume: false, or with write.mode: overwrite if the output is complete"
)


def load_json(content: bytes) -> Any:
    """Return the parsed JSON. Raises ValueError if it is invalid or nested too deep."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def dump_checksummed(state: dict[str, Any]) -> bytes:
    """Return the state with its checksum as the last field, as bytes to store."""
    content = json.dumps(state).encode()
    return content[:-1] + _SEPARATOR + b"%d}" % zlib.crc32(content)


def load_checksummed(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the state without its checksum."""
    return {name: value for name, value in stored.items() if name != SEAL}


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
