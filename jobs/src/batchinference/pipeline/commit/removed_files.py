"""Removes the rows of input files from a snapshot, because the files have changed or are gone.

Manifest entries know the part of each input file. So the rows of other files in the same output
files are not computed again. The removed rows leave the output files when the output is completed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from batchinference.pipeline.commit.manifest import ManifestEntry, Origin, rows_in
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import sum_warnings


def merged_origins(entries: Sequence[ManifestEntry]) -> list[Origin]:
    """Return the origins of entries with one data file each whose rows become one file, in this
    order; empty if those of an entry are unknown."""
    if not all(entry.origins for entry in entries):
        return []
    found = itertools.chain.from_iterable(entry.origins for entry in entries)
    return [
        _sum(file, list(parts)) for file, parts in itertools.groupby(found, lambda part: part.file)
    ]


def _sum(file: int, parts: list[Origin]) -> Origin:
    rows = sum(count for part in parts for _, count in part.rows)
    counts = Counts.sum(part.counts for part in parts)
    warnings = sum_warnings(warning for part in parts for warning in part.warnings)
    return Origin(file, [(0, rows)] if rows else [], counts, warnings)


def without_files(
    snapshot: Snapshot, changed: Collection[int], gone: Collection[int] = ()
) -> Snapshot:
    """Return the snapshot without the rows of these input files, by number: those of `changed` are
    missing, and `gone` have no rows any more."""
    files = {*changed, *gone}
    ends = {file: rows for file, rows in snapshot.ends.items() if file not in files}
    entries = (_without_files(entry, files) for entry in snapshot.entries)
    return replace(
        snapshot,
        ends=ends | dict.fromkeys(gone, 0),
        recomputed=sorted({*snapshot.recomputed, *changed}.difference(gone)),
        removed=sorted({*snapshot.removed, *gone}.difference(changed)),
    ).only([entry for entry in entries if entry is not None])


def _without_files(entry: ManifestEntry, files: set[int]) -> ManifestEntry | None:
    """Return the entry without the rows of these files. They leave its data files when the output
    is completed. Returns None if nothing is left, or if it is unknown which rows they are."""
    row_ranges = [rows for rows in entry.row_ranges if rows[0] not in files]
    shares = [share for share in entry.shares if share[0] not in files]
    held = {origin.file for origin in entry.origins if not origin.removed}
    unchanged = len(row_ranges) == len(entry.row_ranges) and len(shares) == len(entry.shares)
    if unchanged and held.isdisjoint(files):
        return entry
    if held <= files:
        return None
    origins = [
        Origin(one.file, one.rows, Counts(), [], removed=True) if one.file in files else one
        for one in entry.origins
    ]
    read = Counts(read=rows_in(row_ranges))
    return replace(
        entry,
        counts=Counts.sum([read, *(origin.counts for origin in origins)]),
        row_ranges=row_ranges,
        shares=shares,
        warnings=sum_warnings(warning for one in origins for warning in one.warnings),
        origins=origins,
    )
