"""User code for jobs that run without Ray."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from support.documents.minimal import Document
from support.jobs.without_ray import half

LATER = [4, 5, 11]
"""Values on which `half_until` fails at first."""


def fails_until(row: dict[str, Any], file: str) -> dict[str, Any]:
    """Fail for bad rows until a file exists, and for the worst rows always."""
    if "worst" in row["text"] or ("bad" in row["text"] and not Path(file).exists()):
        raise ValueError("bad")
    return row


def step_until(file: Path) -> Document:
    call = {"callable": "support.jobs.user_code:fails_until", "method": "map"}
    return {"name": "own", "python": {**call, "callArgs": {"file": str(file)}}}


def half_until(batch: dict[str, np.ndarray], file: str) -> dict[str, Any]:
    """Do the same as `half`, but also fail for some values until a file exists: for one of several
    values of a row, and for the only value of a row."""
    if np.isin(batch["values"], LATER).any() and not Path(file).exists():
        raise ValueError("not yet")
    return half(batch)


def killed(batch: dict[str, Any]) -> dict[str, Any]:
    """Kill the process, as the kernel does if memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return batch


def embed(batch: dict[str, Any]) -> dict[str, Any]:
    """Add the mean of each channel."""
    means = [image.reshape(-1, 3).mean(axis=0) for image in batch["image"]]
    return {**batch, "embedding": np.stack(means).astype(np.float32)}


def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row, row]


def vectors(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "vector": np.array([[at, 0.5] for at in batch["id"]], np.float32)}


def logged(batch: dict[str, Any], file: str) -> dict[str, Any]:
    """Append the number of each row to a file."""
    with Path(file).open("a") as log:
        log.write("".join(f"{number}\n" for number in batch["n"]))
    return batch


def fails_from(batch: dict[str, Any], n: int, file: str) -> dict[str, Any]:
    """End the job at rows from a number on, until a file exists."""
    if max(batch["n"]) >= n and not Path(file).exists():
        raise KeyboardInterrupt
    return batch


def costly(batch: dict[str, Any], file: str, n: int) -> dict[str, Any]:
    """Add the right result, and append the number of each row to a file. End the job at rows from a
    number on, until a file exists."""
    fails_from(batch, n, str(Path(file).parent / "fixed"))
    return {**logged(batch, file), "costly": batch["right"]}


class Costly:
    """The step `costly` as a class, which runs in an actor pool."""

    def __call__(self, batch: dict[str, Any], file: str, n: int) -> dict[str, Any]:
        return costly(batch, file, n)
