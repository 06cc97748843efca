"""Manifests: what one write task has committed.

Files that no manifest names do not count. A manifest's name carries the task and the counts, so
that progress is known from a listing alone, and ends in letters of its own: none is written over.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, ConfigDict, TypeAdapter

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.manifest_entry import (
    End,
    ManifestEntry,
    Range,
    RowCounts,
    counts_of,
)
from batchinference.pipeline.commit.state_fields import STRICT, Natural, all_of_work
from batchinference.pipeline.storage.checksummed_json import (
    dump_checksummed,
    load_checksummed,
    load_json,
    verify_checksum,
)

_NAME = re.compile(r"^(\d{8,})\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.[0-9a-f]{8}\.json$")
_NUMBERS = TypeAdapter(dict[str, float])


def _of_numbers(note: str) -> str:
    _NUMBERS.validate_json(note)
    return note


Note = Annotated[str, AfterValidator(_of_numbers)]


@dataclass(frozen=True)
class Manifest:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    task: Natural
    pieces: list[ManifestEntry]
    ends: list[End]
    """File and rows in it, for each file whose end the task has seen."""
    notes: list[tuple[str, Note]]
    """Step and what there is to know of it, as JSON."""

    def is_of(self, key: str) -> bool:
        """Whether the files that it names are those of this work."""
        return all_of_work((file.name for piece in self.pieces for file in piece.files), key)

    def new_name(self) -> str:
        """A name that no other has."""
        counts = counts_of(self.pieces)
        numbers = (counts.read, counts.written, counts.failed, counts.skipped)
        return f"{self.task:08d}.{'.'.join(map(str, numbers))}.{uuid.uuid4().hex[:8]}.json"

    def serialized(self) -> bytes:
        pieces = [piece.as_json() for piece in self.pieces]
        stored = {"task": self.task, "pieces": pieces, "ends": self.ends, "notes": self.notes}
        return dump_checksummed(stored)

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        """Raises ValueError for what is no manifest."""
        try:
            raw = load_json(content)
            verify_checksum(raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no manifest: {error}") from error
        return _MANIFEST.validate_python(load_checksummed(raw))


_MANIFEST = TypeAdapter(Manifest)


def parse_manifest_name(name: str) -> tuple[int, RowCounts] | None:
    """The task and its counts from a manifest's name; None for a name that is none."""
    match = _NAME.match(name)
    if match is None:
        return None
    task, *counts = map(int, match.groups())
    return task, RowCounts(*counts)


def ranges_of(ids: np.ndarray) -> list[Range]:
    """Row ids (int64, any order, each once) as file, first row, row after the last."""
    if len(ids) == 0:
        return []
    ordered = np.sort(ids)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = ordered[np.concatenate(([0], breaks))]
    lasts = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))]
    files, first = row_ids.unpack(starts)
    _, last = row_ids.unpack(lasts)
    return list(zip(files.tolist(), first.tolist(), (last + 1).tolist(), strict=True))


def ends_of(ids: np.ndarray) -> list[tuple[int, int]]:
    """The ids of END rows as file and rows in it."""
    files, counts = row_ids.unpack(ids)
    return list(zip(files.tolist(), counts.tolist(), strict=True))
