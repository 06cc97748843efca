"""Manifests: what a task has committed at once.

Files that no manifest names do not count. The name of a manifest contains the task, the number of
the commit in the task, and the counts, so that a listing is enough to determine progress. It ends
in a random suffix, so that no manifest overwrites another.
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

_NAME = re.compile(r"^(\d{8,})-(\d{4,})\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.[0-9a-f]{8}\.json$")
_NUMBERS = TypeAdapter(dict[str, float])


def _of_numbers(note: str) -> str:
    _NUMBERS.validate_json(note)
    return note


Note = Annotated[str, AfterValidator(_of_numbers)]


@dataclass(frozen=True)
class Manifest:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    task: Natural
    number: Natural
    """The number of commits that the task made before this one."""
    entries: list[ManifestEntry]
    ends: list[End]
    """File and its number of rows, for each file whose end the task has seen."""
    notes: list[tuple[str, Note]]
    """Step and a note on it, as JSON."""

    def is_of(self, key: str) -> bool:
        """Return whether the files that it names belong to the work with this key."""
        return all_of_work((file.name for entry in self.entries for file in entry.files), key)

    def new_name(self) -> str:
        """Return a unique name."""
        counts = counts_of(self.entries)
        numbers = (counts.read, counts.written, counts.failed, counts.skipped)
        counted = ".".join(map(str, numbers))
        return f"{self.task:08d}-{self.number:04d}.{counted}.{uuid.uuid4().hex[:8]}.json"

    def serialized(self) -> bytes:
        entries = [entry.as_json() for entry in self.entries]
        return dump_checksummed({**vars(self), "entries": entries})

    @classmethod
    def parse(cls, content: bytes) -> Manifest:
        """Return the manifest in `content`. Raises ValueError if it is not a manifest."""
        try:
            raw = load_json(content)
            verify_checksum(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no manifest: {error}") from error
        return _MANIFEST.validate_python(load_checksummed(raw))


_MANIFEST = TypeAdapter(Manifest)


def parse_manifest_name(name: str) -> tuple[tuple[int, int], RowCounts] | None:
    """Return the task, the number of the commit in the task, and its counts from the name of a
    manifest; None for any other name."""
    match = _NAME.match(name)
    if match is None:
        return None
    task, number, *counts = map(int, match.groups())
    return (task, number), RowCounts(*counts)


def ranges_of(ids: np.ndarray) -> list[Range]:
    """Return row ids (int64, any order, no duplicates) as ranges: file, first row, row after the
    last."""
    if len(ids) == 0:
        return []
    steps = np.diff(ids)
    ordered = ids if (steps > 0).all() else np.sort(ids)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = ordered[np.concatenate(([0], breaks))]
    lasts = ordered[np.concatenate((breaks - 1, [len(ordered) - 1]))]
    files, first = row_ids.unpack(starts)
    _, last = row_ids.unpack(lasts)
    return list(zip(files.tolist(), first.tolist(), (last + 1).tolist(), strict=True))
