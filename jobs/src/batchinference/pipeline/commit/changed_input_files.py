"""Removes rows from the snapshot of an output if their input files have changed or are gone.

If a manifest entry records which of its rows come from which input file (`Origin`), the rows of
unchanged input files stay valid. When the output is completed, the data files of the entry are
rewritten without the removed rows."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from batchinference.pipeline.commit.manifest import ManifestEntry, Origin, rows_in
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import sum_warnings


def merged_origins(entries: Sequence[ManifestEntry]) -> list[Origin]:
    """Return the origins of the data file that replaces those of `entries`, which have one each.
    Return an empty list if the origins of an entry are unknown."""
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
    """Return the snapshot without the rows of the input files with these numbers. The rows of the
    `changed` files are missing from now on, and the files that are `gone` count as empty."""
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
    """Return the entry without the rows of `files`, and with the origins of `files` marked as
    removed. Return None if no row remains, or if it is unknown which rows come from `files`."""
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
