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

_NAME = re.compile(r"^(\d{8})\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.json$")


_TUPLES = ("ranges", "shares", "ends", "columns", "notes")


@dataclass(frozen=True)
class Counts:
    """Rows of the input, and what became of them: a row may have become several, or a part of
    those may be elsewhere, in which case it is not counted yet."""

    read: int = 0
    written: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.written + other.written,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task has put: its path below the output or the errors, its size in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    attempt: int
    task: int
    counts: Counts
    ranges: list[tuple[int, int, int]]
    """File, first row, row after the last: of the input, for the whole rows of the task."""
    shares: list[tuple[int, int, int]]
    """File, row, share: for rows that the task holds a part of."""
    ends: list[tuple[int, int]]
    """File and rows in it, for each file whose end the task has seen."""
    data: list[WrittenFile]
    columns: list[tuple[str, str]]
    """The columns of the data, and their types."""
    errors: WrittenFile | None
    notes: list[tuple[str, str]]
    """Step and what there is to know of it, as JSON."""

    @property
    def name(self) -> str:
        counts = self.counts
        numbers = (counts.read, counts.written, counts.failed, counts.skipped)
        return f"{self.task:08d}.{'.'.join(map(str, numbers))}.json"

    def serialized(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        raw = json.loads(content)
        tuples = {key: [tuple(entry) for entry in raw[key]] for key in _TUPLES}
        files = {
            "data": [WrittenFile(**file) for file in raw["data"]],
            "errors": WrittenFile(**raw["errors"]) if raw["errors"] else None,
        }
        return cls(**{**raw, **files, **tuples, "counts": Counts(**raw["counts"])})

    @property
    def files(self) -> list[WrittenFile]:
        """All that the task has put."""
        return [*self.data, self.errors] if self.errors else self.data


def counts_of_name(name: str) -> tuple[int, Counts] | None:
    """The task and its counts from a manifest's name; None for a name that is none."""
    match = _NAME.match(name)
    if match is None:
        return None
    task, *counts = map(int, match.groups())
    return task, Counts(*counts)


def whole_and_parts(
    ids: np.ndarray, shares: np.ndarray | None
) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """The ids of rows that are whole, and file, row and share of the others.

    `ids` may hold a row several times, once for each of its parts.
    """
    if shares is None:
        return ids, []
    unique, places = np.unique(ids, return_inverse=True)
    sums = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sums, places, shares)
    partial = sums != rows.WHOLE
    files, numbers = rows.unpack(unique[partial])
    parts = zip(files.tolist(), numbers.tolist(), sums[partial].tolist(), strict=True)
    return unique[~partial], list(parts)


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
