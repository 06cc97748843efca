"""How much memory this process has taken."""

from __future__ import annotations

import json
import resource
import sys

GROWTH = 1.1
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of what getrusage counts in."""


def peak_bytes() -> int:
    """The most memory that this process had at any time, what it shares with others included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def peak_note() -> str:
    return json.dumps({"peak_bytes": peak_bytes()})


class MemoryWatch:
    """Tells of the process's memory whenever it has grown well beyond what was told before."""

    def __init__(self) -> None:
        self._told = 0.0

    def note(self) -> str | None:
        peak = peak_bytes()
        if peak < self._told * GROWTH:
            return None
        self._told = peak
        return peak_note()
