"""Detects committed files that are missing, or differ in size from what was committed."""

from __future__ import annotations

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.storage.location import Location


def without_missing_files(layout: Layout, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without manifest entries that have a missing or damaged file."""
    data, errors = _sizes(layout.data), _sizes(layout.errors)
    return snapshot.only(
        [
            entry
            for entry in snapshot.entries
            if all(data.get(file.name) == file.bytes for file in entry.data)
            and (entry.errors is None or errors.get(entry.errors.name) == entry.errors.bytes)
        ]
    )


def _sizes(place: Location) -> dict[str, int]:
    return {place.below(info.path): info.size for info in place.data_files()}
