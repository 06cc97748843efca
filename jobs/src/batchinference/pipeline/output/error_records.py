"""Reads the error records of failed rows."""

from __future__ import annotations

from collections.abc import Iterable

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest_entry import ManifestEntry
from batchinference.pipeline.storage.arrow_files import read_table


def bad_row(layout: Layout, entries: Iterable[ManifestEntry]) -> str:
    """Return a message that describes one failed row, or "(unknown)" if there is none."""
    for entry in entries:
        if entry.errors is not None:
            place = layout.errors / entry.errors.name
            with place.filesystem.open_input_file(place.path) as source:
                row = read_table(source).slice(0, 1).to_pylist()[0]
            return f"row {row['row']} of {row['path']}, step '{row['step']}': {row['error']}"
    return "(unknown)"
