"""How often a benchmark runs each side. The sides alternate, and the medians are compared."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
