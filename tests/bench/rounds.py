"""How often a benchmark runs each side, in turns; the medians count."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
