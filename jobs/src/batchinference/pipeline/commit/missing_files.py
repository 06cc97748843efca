"""Finds manifest entries whose data or error files somebody has deleted or changed.

The next attempt computes the rows of these entries again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.storage.location import Location


@dataclass(frozen=True)
class ListedFiles:
    """The sizes in bytes of the data files and error files of an output, by name, when listed."""

    data: Mapping[str, int]
    errors: Mapping[str, int]

    @classmethod
    def of(cls, layout: Layout) -> ListedFiles:
        return cls(_sizes(layout.data), _sizes(layout.errors))


def without_missing_files(
    layout: Layout, snapshot: Snapshot, files: ListedFiles | None = None
) -> Snapshot:
    """Return the snapshot without manifest entries that have a missing file or a file of another
    size. `files` is a listing of the output that was made after the entries were read, if any."""
    files = files or ListedFiles.of(layout)
    return snapshot.with_entries(
        [
            entry
            for entry in snapshot.entries
            if all(files.data.get(file.name) == file.bytes for file in entry.data)
            and (entry.errors is None or files.errors.get(entry.errors.name) == entry.errors.bytes)
        ]
    )


def _sizes(directory: Location) -> dict[str, int]:
    return {directory.below(info.path): info.size for info in directory.data_files()}
