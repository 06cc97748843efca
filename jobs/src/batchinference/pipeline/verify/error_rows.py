"""The rows of an error file, against those of the input that its commit holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline import row_ids
from batchinference.pipeline.commit.manifest_entry import ManifestEntry
from batchinference.pipeline.commit.row_set import RowSet
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location


def wrong_errors(piece: ManifestEntry, file: Location) -> int:
    """How many of a piece's bad rows are not among its rows, or are there once more than once.

    Raises ArrowInvalid or OSError for a file that cannot be read."""
    ids = _ids(file)
    held = RowSet.of([piece])
    places = np.searchsorted(held.starts, ids, side="right") - 1
    inside = np.append(held.stops, 0)[places] > ids  # of those before the first the last place
    repeated = len(ids) - len(np.unique(ids)) if _is_one_to_one(piece) else 0
    return int((~inside).sum()) + repeated


def _is_one_to_one(piece: ManifestEntry) -> bool:
    """Whether no row has become several, which can all fail."""
    counts = piece.counts
    return not piece.shares and counts.read == counts.written + counts.failed + counts.skipped


def _ids(file: Location) -> np.ndarray:
    """The ids of bad rows, int64."""
    with file.filesystem.open_input_file(file.path) as source:
        column = read_table(source, columns=["id"]).column("id")
    parts = pc.split_pattern(column, ":")
    files, numbers = (
        pc.list_element(parts, place).cast(pa.int64()).to_numpy() for place in range(2)
    )
    ids: np.ndarray = (files << row_ids.ROW_BITS) | numbers
    return ids
