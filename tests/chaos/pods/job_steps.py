"""The steps of the jobs. They run in Ray workers."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

Row = dict[str, Any]
ROW_COUNTER = ("proxy", 7072)


class Passing:
    """A slow step that reports the number of rows of each batch to the row counter.

    The last row waits until all faults of the job's plan have been injected.
    """

    def __init__(self, seconds: float, last: str) -> None:
        self._seconds = seconds
        self._last = last

    def __call__(self, batch: Row) -> Row:
        ask(str(len(batch["text"])))
        time.sleep(self._seconds)
        if self._last in map(str, batch["text"]):
            while ask("open?") != b"+":
                time.sleep(0.5)
        return batch


class Same:
    """A step that returns its rows."""

    def __call__(self, batch: Row) -> Row:
        return batch


def ask(request: str) -> bytes:
    """Send a request about this job to the row counter, and return the answer."""
    with socket.create_connection(ROW_COUNTER, timeout=30) as connection:
        connection.sendall(f"{os.environ['CHAOS_JOB']} {request}\n".encode())
        return connection.recv(1)


def number_of(row: Row) -> int:
    text = row["answer"][::-1] if "answer" in row else row["text"]
    return int(str(text).rsplit(" ", 1)[1])


def is_bad(n: int) -> bool:
    return n % 100 == 13


def single(row: Row) -> Row:
    n = number_of(row)
    if is_bad(n):
        raise ValueError(f"row {n} is bad")
    return {"number": n, "part": 0}


def several(row: Row) -> list[Row]:
    """Return N % 4 output rows for `row N`, so that some rows have none."""
    n = number_of(row)
    if is_bad(n):
        raise ValueError(f"row {n} is bad")
    return [{"number": n, "part": part} for part in range(n % 4)]


def listed(row: Row) -> Row:
    n = number_of(row)
    if is_bad(n):
        raise ValueError(f"row {n} is bad")
    return {"number": n, "part": list(range(1 + n % 3))}


def copies(row: Row) -> list[Row]:
    return [{"number": number_of(row), "part": part} for part in range(3)]


def checked(row: Row) -> Row:
    """Return the row unchanged; fail for one part of a bad row."""
    if is_bad(row["number"]) and row["part"] == 1:
        raise ValueError(f"part 1 of row {row['number']} is bad")
    return row
