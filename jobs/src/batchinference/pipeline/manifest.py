"""Manifests: what one write task has put into the output, and for which rows.

A manifest is the commit of its task: files that no manifest names do not count. Its name carries
the task and the counts, so that progress is known from a listing alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

import numpy as np

from batchinference.pipeline import rows

_NAME = re.compile(r"^(\d{8})\.(\d+)\.(\d+)\.(\d+)\.json$")


@dataclass(frozen=True)
class Counts:
    """Rows by what became of them."""

    written: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def read(self) -> int:
        return self.written + self.failed + self.skipped

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.written + other.written,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task has put: its name in its directory, its size in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    attempt: int
    task: int
    counts: Counts
    ranges: list[tuple[int, int, int]]
    """File, first row, row after the last: of the input, for all rows of the task."""
    ends: list[tuple[int, int]]
    """File and rows in it, for each file whose end the task has seen."""
    data: WrittenFile | None
    errors: WrittenFile | None

    @property
    def name(self) -> str:
        counts = self.counts
        return f"{self.task:08d}.{counts.written}.{counts.failed}.{counts.skipped}.json"

    def serialized(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        raw = json.loads(content)
        files = {
            key: WrittenFile(**raw[key]) if raw[key] is not None else None
            for key in ("data", "errors")
        }
        pairs = {key: [tuple(entry) for entry in raw[key]] for key in ("ranges", "ends")}
        return cls(**{**raw, **files, **pairs, "counts": Counts(**raw["counts"])})


def counts_of_name(name: str) -> tuple[int, Counts] | None:
    """The task and its counts from a manifest's name; None for a name that is none."""
    match = _NAME.match(name)
    if match is None:
        return None
    task, *counts = map(int, match.groups())
    return task, Counts(*counts)


def ranges_of(ids: np.ndarray) -> list[tuple[int, int, int]]:
    """Row ids (int64, any order, each once) as file, first row, row after the last."""
    if len(ids) == 0:
        return []
    ordered = np.sort(ids)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = ordered[np.concatenate(([0], breaks))]
    lasts = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))]
    files, first = rows.unpack(starts)
    _, last = rows.unpack(lasts)
    return list(zip(files.tolist(), first.tolist(), (last + 1).tolist(), strict=True))


def ends_of(ids: np.ndarray) -> list[tuple[int, int]]:
    """The ids of END rows as file and rows in it."""
    files, counts = rows.unpack(ids)
    return list(zip(files.tolist(), counts.tolist(), strict=True))
