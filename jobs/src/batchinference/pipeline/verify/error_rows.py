"""Compares the rows of an error file with the input rows of its manifest entry."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.manifest_entry import ManifestEntry
from batchinference.pipeline.commit.row_set import RowSet
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location


def wrong_errors(entry: ManifestEntry, file: Location) -> int:
    """Return how many error records of a manifest entry are not among its rows, or are duplicates.

    Raises ArrowInvalid or OSError if the file cannot be read."""
    ids = _ids(file)
    held = RowSet.of([entry])
    places = np.searchsorted(held.starts, ids, side="right") - 1
    inside = np.append(held.stops, 0)[places] > ids  # place -1 selects the appended 0
    repeated = len(ids) - len(np.unique(ids)) if _is_one_to_one(entry) else 0
    return int((~inside).sum()) + repeated


def _is_one_to_one(entry: ManifestEntry) -> bool:
    """Return whether no row has become several rows. These could all fail, with the same id."""
    counts = entry.counts
    return not entry.shares and counts.read == counts.written + counts.failed + counts.skipped


def _ids(file: Location) -> np.ndarray:
    """Return the ids of the failed rows, int64."""
    with file.filesystem.open_input_file(file.path) as source:
        column = read_table(source, columns=["id"]).column("id")
    parts = pc.split_pattern(column, ":")
    files, numbers = (
        pc.list_element(parts, place).cast(pa.int64()).to_numpy() for place in range(2)
    )
    ids: np.ndarray = (files << row_ids.ROW_BITS) | numbers
    return ids
