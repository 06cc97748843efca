"""Removes failed rows from a snapshot, so that the next pass processes them again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.manifest import ManifestEntry, Range, rows_in
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.row_batch import READ_STEP, ROW_BITS, pack_id
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import damaged_state


def without_failed_rows(snapshot: Snapshot, errors: Location) -> Snapshot:
    """Return the snapshot without the rows that have error records: they become missing. Manifest
    entries without remaining rows are left out (see `commit_groups`). If the last row of a file
    could not be read, its error record may stand for the rest of the file. The end of the file is
    then unknown, and `ends` does not contain it."""
    entries, ends = list[ManifestEntry](), dict(snapshot.ends)
    last_rows = {pack_id(file, after - 1): file for file, after in ends.items() if after}
    for entry in snapshot.entries:
        if entry.errors is None:
            entries.append(entry)
            continue
        failed, unread = failed_ids(errors / entry.errors.name)
        for row in last_rows.keys() & unread.tolist():
            del ends[last_rows.pop(row)]
        if (remaining := _entry_without(entry, failed)) is not None:
            entries.append(remaining)
    return replace(snapshot, ends=ends).with_entries(entries)


def failed_ids(file: Location) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted, unique ids (int64) of the rows in an error file, and the ids of rows that
    could not be read. Raises BadOutput if the file is damaged or unreadable."""
    try:
        table = read_table(pa.BufferReader(file.read()), columns=["id", "step"])
        ids = ids_of(table)
    except (pa.ArrowException, OSError, ValueError):
        raise damaged_state(file) from None
    return np.unique(ids), ids[table.column("step").to_numpy() == READ_STEP]


def ids_of(records: pa.Table) -> np.ndarray:
    """Return the row ids (int64) of error records. Raises ValueError if a text is not an id. Does
    not import Arrow's compute module, which takes 6 MB of memory."""
    try:
        pairs = [str.split(text, ":") for text in records.column("id").to_pylist()]
        files, numbers = np.array(pairs, dtype=str).reshape(len(pairs), 2).astype(np.int64).T
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None
    return np.asarray(files << ROW_BITS | numbers)


def _entry_without(entry: ManifestEntry, failed: np.ndarray) -> ManifestEntry | None:
    """Return the entry without its failed rows. None if it has shares of rows, or no other rows."""
    if entry.shares:
        return None
    row_ranges = _without_rows(entry.row_ranges, failed)
    if not row_ranges:
        return None
    remaining = entry.counts.model_copy(update={"read": rows_in(row_ranges), "failed": 0})
    origins = [
        replace(origin, counts=origin.counts.model_copy(update={"failed": 0}))
        for origin in entry.origins
    ]
    return replace(entry, row_ranges=row_ranges, counts=remaining, errors=None, origins=origins)


def _without_rows(row_ranges: list[Range], ids: np.ndarray) -> list[Range]:
    """Return the ranges without the rows that have these ids, which must be sorted."""
    remaining: list[Range] = []
    for file, first, after in row_ranges:
        base = pack_id(file, 0)
        begin, end = np.searchsorted(ids, [base + first, base + after])
        rows = (ids[begin:end] - base).tolist()
        parts = zip([first, *(row + 1 for row in rows)], [*rows, after], strict=True)
        remaining += [(file, start, stop) for start, stop in parts if start < stop]
    return remaining
