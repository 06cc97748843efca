"""Stops the servers and processes of a benchmark when the benchmark is stopped by a signal."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


def exit_on_signals() -> None:
    """Make SIGTERM and SIGINT raise SystemExit, so that all context managers are left.

    By default, SIGTERM ends a process, and a shell starts background processes with SIGINT
    ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
