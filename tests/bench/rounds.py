"""The number of rounds and rows of a benchmark. The sides alternate, and medians are compared."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SIZE = float(os.environ.get("BENCH_SIZE", "1"))


def sized(rows: int) -> int:
    """Return the number of rows to run, for a full benchmark of `rows` rows."""
    return max(1, round(rows * SIZE))
