"""Removes rows from the snapshot of an output if their input files have changed or are gone.

A manifest entry may record which of its rows come from which input file (`Origin`). Its rows from
unchanged input files then stay valid. At the end of the job, its data files are rewritten without
the removed rows."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from batchinference.pipeline.commit.manifest import ManifestEntry, Origin, rows_in
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import sum_warnings


def merged_origins(entries: Sequence[ManifestEntry]) -> list[Origin]:
    """Return the origins of one data file that replaces the data files of `entries`. Each entry has
    one data file. Empty if the origins of an entry are unknown."""
    if not all(entry.origins for entry in entries):
        return []
    all_origins = itertools.chain.from_iterable(entry.origins for entry in entries)
    by_file = itertools.groupby(all_origins, lambda origin: origin.file)
    return [_sum(file, list(origins)) for file, origins in by_file]


def _sum(file: int, origins: list[Origin]) -> Origin:
    rows = sum(count for origin in origins for _, count in origin.rows)
    counts = Counts.sum(origin.counts for origin in origins)
    warnings = sum_warnings(warning for origin in origins for warning in origin.warnings)
    return Origin(file, [(0, rows)] if rows else [], counts, warnings)


def without_input_files(
    snapshot: Snapshot, changed: Collection[int], gone: Collection[int] = ()
) -> Snapshot:
    """Return the snapshot without the rows of the input files with these numbers. Rows of `changed`
    files become missing, and files that are `gone` count as empty."""
    files = {*changed, *gone}
    ends = {file: rows for file, rows in snapshot.ends.items() if file not in files}
    entries = (_entry_without_files(entry, files) for entry in snapshot.entries)
    return replace(
        snapshot,
        ends=ends | dict.fromkeys(gone, 0),
        recomputed=sorted({*snapshot.recomputed, *changed}.difference(gone)),
        removed=sorted({*snapshot.removed, *gone}.difference(changed)),
    ).with_entries([entry for entry in entries if entry is not None])


def _entry_without_files(entry: ManifestEntry, files: set[int]) -> ManifestEntry | None:
    """Return the entry without the rows of `files`: their origins are marked as removed. None if no
    row remains, or if it is unknown which rows come from `files`."""
    row_ranges = [rows for rows in entry.row_ranges if rows[0] not in files]
    shares = [share for share in entry.shares if share[0] not in files]
    current = {origin.file for origin in entry.origins if not origin.removed}
    unchanged = len(row_ranges) == len(entry.row_ranges) and len(shares) == len(entry.shares)
    if unchanged and current.isdisjoint(files):
        return entry
    if current <= files:
        return None
    origins = [
        Origin(origin.file, origin.rows, Counts(), [], removed=True)
        if origin.file in files
        else origin
        for origin in entry.origins
    ]
    read = Counts(read=rows_in(row_ranges))
    return replace(
        entry,
        counts=Counts.sum([read, *(origin.counts for origin in origins)]),
        row_ranges=row_ranges,
        shares=shares,
        warnings=sum_warnings(warning for origin in origins for warning in origin.warnings),
        origins=origins,
    )
