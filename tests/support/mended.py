"""A user's code that fails on some rows until it is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from support.documents import Document
from support.played_jobs import half

LATER = [4, 5, 11]
"""Values on which a played job may fail at first."""


def fails_until(row: dict[str, Any], file: str) -> dict[str, Any]:
    """Fails on bad rows until a file is there, and on the worst ones even then."""
    if "worst" in row["text"] or ("bad" in row["text"] and not Path(file).exists()):
        raise ValueError("bad")
    return row


def step_until(file: Path) -> Document:
    """The step that does so."""
    call = {"callable": "support.mended:fails_until", "method": "map"}
    return {"name": "own", "python": {**call, "callArgs": {"file": str(file)}}}


def half_until(batch: dict[str, np.ndarray], file: str) -> dict[str, Any]:
    """As the step of a played job, but that it also fails on some values until a file is there: on
    one of several that have come of a row, and on the only one."""
    if np.isin(batch["values"], LATER).any() and not Path(file).exists():
        raise ValueError("not yet")
    return half(batch)
