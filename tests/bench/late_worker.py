"""Simulates a worker that has lost its cluster without noticing: it continues its task."""

from __future__ import annotations

import os
from pathlib import Path

from faults import FLAGS, put_flag
from ray import cloudpickle

if __name__ == "__main__":
    try:
        cloudpickle.loads((Path(os.environ[FLAGS]) / "cut off").read_bytes())()
    finally:
        put_flag("late one has ended")
