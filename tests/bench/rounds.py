"""How often a benchmark runs each side, and over how many rows. The sides alternate, and the
medians are compared."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SIZE = float(os.environ.get("BENCH_SIZE", "1"))


def sized(rows: int) -> int:
    """Return the number of rows to run, of those of the full benchmark."""
    return max(1, round(rows * SIZE))
