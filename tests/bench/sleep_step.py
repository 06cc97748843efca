"""The step that the job of scaling.py runs. It needs almost no CPU."""

from __future__ import annotations

import socket
import time
from typing import Any

SECONDS = 0.02


def nap(row: dict[str, Any]) -> dict[str, Any]:
    """Sleep, and add the times and the host to the row."""
    began = time.time()
    time.sleep(SECONDS)
    return {**row, "began": began, "ended": time.time(), "pod": socket.gethostname()}
