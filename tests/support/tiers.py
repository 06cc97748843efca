"""The number of examples that a test uses: few at each landing, all of them in the long tier."""

from __future__ import annotations

import os

TIER = "TEST_TIER"
"""The environment variable that is `long` while a group of the long tier runs."""


def in_long_tier() -> bool:
    """Return whether a group of the long tier is running."""
    return os.environ.get(TIER) == "long"


def examples(full: int, landing: int | None = None) -> int:
    """Return `full` in the long tier, else `landing` (a quarter of `full` by default)."""
    if in_long_tier():
        return full
    return landing if landing is not None else max(1, full // 4)
