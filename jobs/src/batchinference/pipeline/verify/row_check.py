"""Counts the rows of the input again, and compares them with the rows of all manifest entries. A
job uses only valid entries (see `row_coverage`), but this module also uses invalid ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import ManifestEntry, Range
from batchinference.pipeline.commit.retry_failed_rows import ids_of
from batchinference.pipeline.commit.row_coverage import RowSet, edges, rows_in_all, summed_shares
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.changed_files import FileChanges
from batchinference.pipeline.input.file_input import prepared
from batchinference.pipeline.input.file_rows import FileRows
from batchinference.pipeline.input.ignored_files import NONE_IGNORED, IgnoredFiles
from batchinference.pipeline.input.input_snapshot import (
    InputFile,
    InputSnapshot,
    paths_of,
    read_own_snapshot,
)
from batchinference.pipeline.input.planning import with_row_counts
from batchinference.pipeline.input.readers import FileStats, Reader, size_of
from batchinference.pipeline.input.readers.kinds import reader_for
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import FULL_SHARE, ROW_BITS, MissingRows, unpack_ids
from batchinference.pipeline.storage.arrow_files import table_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Defect, Kind, Position
from batchinference.pipeline.verify.stored_jobs import StoredJob
from batchinference.spec.read import ReadFiles, ReadVersioned

Lister: TypeAlias = Callable[..., InputSnapshot]
"""Does the same as `listing.list_existing`, but lists each input only once."""


@dataclass(frozen=True)
class Sizes:
    """The number of rows of each input file."""

    files: int
    ends: dict[int, int]
    """The number of rows of a file, by file number."""
    rows_each: int | None = None
    """The number of rows of each file that is not in `ends`; None if it is unknown."""

    @property
    def total(self) -> int | None:
        """The number of input rows; None if the rows of a file are unknown."""
        if self.rows_each is not None:
            return rows_in_all(self.files, self.ends, self.rows_each)
        return sum(self.ends.values()) if len(self.ends) == self.files else None

    def of(self, files: np.ndarray) -> np.ndarray:
        """Return the numbers of rows (int64) of the files with these numbers. It is 0 for a file
        that does not exist, and the maximum int64 if it is unknown."""
        unknown = np.iinfo(np.int64).max if self.rows_each is None else self.rows_each
        sizes = [
            self.ends.get(file, unknown) if file < self.files else 0 for file in files.tolist()
        ]
        return np.array(sizes, dtype=np.int64)


@dataclass(frozen=True)
class AccountedRows:
    """The rows of the manifest entries of an output."""

    row_set: RowSet
    repeated: list[Range]
    """The rows that the entries have more than once, or whose shares exceed FULL_SHARE."""

    @classmethod
    def of(cls, entries: Sequence[ManifestEntry]) -> AccountedRows:
        """Return the rows of entries. A split row counts if its shares reach FULL_SHARE."""
        split, shares = summed_shares(entries)
        complete, repeated = split[shares >= FULL_SHARE], split[shares > FULL_SHARE]
        starts, stops, _ = edges(entries)
        starts, stops = np.append(starts, complete), np.append(stops, complete + 1)
        rows = RowSet.merged(starts, stops)
        incomplete = split[shares < FULL_SHARE]
        repeated = np.append(repeated, incomplete[rows.contains(incomplete)])
        return cls(rows, sorted(_repeated(starts, stops) + _as_ranges(repeated, repeated + 1)))

    @property
    def rows(self) -> int:
        """The number of different rows."""
        return self.row_set.rows

    def missing(self, sizes: Sizes) -> MissingRows:
        """Return the rows of the input that no manifest entry has."""
        return self.row_set.missing(sizes.files, sizes.ends, sizes.rows_each)

    def beyond(self, sizes: Sizes) -> list[Range]:
        """Return the rows of manifest entries that the input does not have."""
        files, firsts = unpack_ids(self.row_set.starts)
        base = files << ROW_BITS
        ends = sizes.of(files)
        over = self.row_set.stops - base > ends
        starts = base + np.maximum(firsts, np.minimum(ends, self.row_set.stops - base))
        return _as_ranges(starts[over], self.row_set.stops[over])


def _repeated(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    """Return the rows that are in more than one of these ranges of ids."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    before = np.append(-1, np.maximum.accumulate(stops))[:-1]
    again = starts < before
    return _as_ranges(starts[again], np.minimum(stops, before)[again])


def _as_ranges(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    files, firsts = unpack_ids(starts)
    after = stops - (files << ROW_BITS)
    return list(zip(files.tolist(), firsts.tolist(), after.tolist(), strict=True))


def wrong_errors(entry: ManifestEntry, file: Location) -> int:
    """Return the number of wrong error records of a manifest entry: duplicates, and rows that the
    entry does not have. Raises ValueError or OSError if the file cannot be read."""
    ids = ids_of(table_in(file, ["id"]))
    inside, counts = RowSet.of([entry]).contains(ids), entry.counts
    # the rows of one input row may all fail, with the same id
    outcomes = counts.written + counts.failed + counts.filtered
    is_one_to_one = not entry.shares and counts.read == outcomes
    repeated = len(ids) - len(set(ids.tolist())) if is_one_to_one else 0
    return int((~inside).sum()) + repeated


THREADS = 8
"""Number of input files whose rows are counted at the same time."""


@dataclass(frozen=True)
class InputRows:
    """The files and the numbers of rows of an input, and the defects of its files."""

    names: list[str]
    """The names of the input files, or of the parts of a source that has no files."""
    sizes: Sizes
    counted: int = 0
    """The number of files that were counted again. For others, `sizes` has the job's counts."""
    defects: list[Defect] = field(default_factory=list)
    ignored: IgnoredFiles = NONE_IGNORED
    removed: frozenset[int] = frozenset()
    """The numbers of the files that are gone, and whose rows were removed."""

    @property
    def kept_names(self) -> list[str]:
        """The names of the files whose rows were not removed."""
        return [name for number, name in enumerate(self.names) if number not in self.removed]

    def name(self, number: int) -> str:
        """Return the name of a file, or a text that says that the input does not have the file."""
        known = number < len(self.names)
        return self.names[number] if known else f"part {number}, which is not in the input"


def input_rows(job: StoredJob, committed: Snapshot, listed: Lister, *, quick: bool) -> InputRows:
    """Count the rows of the input again, and return them. With `quick`, count only files that store
    their number of rows. Raises BadOutput if the state of the input is damaged, and BadInput or
    another JobFailure if the input cannot be read."""
    job_pass = JobPass(job.layout, job.lease)
    snapshot, _ = read_own_snapshot(job_pass, job.storage_of_input, committed.input)
    rows = _input_rows(job, committed, snapshot, listed, quick=quick)
    return replace(rows, ignored=snapshot.ignored, removed=snapshot.removed)


def _input_rows(
    job: StoredJob, committed: Snapshot, snapshot: InputSnapshot, listed: Lister, *, quick: bool
) -> InputRows:
    ends = {number: rows for number, rows in committed.ends.items() if number < len(snapshot)}
    read = job.spec.read
    if not isinstance(read, ReadFiles | ReadVersioned):  # the source may return other rows now
        return InputRows(
            paths_of(job.layout.input, committed.input).to_pylist(), Sizes(len(snapshot), ends)
        )
    names = snapshot.labels
    for number in snapshot.removed:  # if such a file comes back, it is listed as a new file
        names[number] += " (removed)"
    if isinstance(read, ReadVersioned):
        from batchinference.pipeline.input.tables.kinds import gone_files, reader_of

        defects = dict[int, Defect]()
        reader: Reader = reader_of(read, snapshot.version)
        # the table may have deleted files since the job read them
        missing = set(gone_files(snapshot, range(len(snapshot))))
    else:
        reader, defects = reader_for(read), _differences(snapshot, read, listed)
        missing = defects.keys() | snapshot.removed
    if isinstance(reader, WholeFileReader):
        sizes = Sizes(len(snapshot), dict.fromkeys(snapshot.removed, 0), 1)
        return InputRows(names, sizes, len(snapshot), list(defects.values()))
    files = [file for file in snapshot.files() if file.number not in missing]
    counted = dict(_counted(snapshot, read, reader, files, ends, quick=quick))
    sizes = Sizes(len(snapshot), ends | counted)
    return InputRows(names, sizes, len(counted), list(defects.values()))


def _differences(snapshot: InputSnapshot, read: ReadFiles, listed: Lister) -> dict[int, Defect]:
    """Return a defect for each input file that is gone or has changed, by file number."""
    try:
        now = listed(snapshot.root.storage, *read.paths)
    except BadInput:  # if all files are gone, each is a defect
        if not len(snapshot) or snapshot.address(snapshot.files()[0]).exists():
            raise
        now = replace(snapshot, table=snapshot.table.slice(0, 0))
    changes, uris, before = FileChanges.between(snapshot, now), snapshot.uris, snapshot.versions
    defects = {n: (Kind.INPUT_GONE, Position(uris[n]), 1) for n in sorted(changes.gone)}
    for number, version in changes.changed.items():
        sizes = f"{before[number][0]} bytes then, {version[0]} now"
        defects[number] = (Kind.INPUT_CHANGED, Position(uris[number], detail=sizes), 1)
    return defects


def _counted(
    snapshot: InputSnapshot,
    read: ReadFiles | ReadVersioned,
    reader: Reader,
    files: list[InputFile],
    ends: Mapping[int, int],
    *,
    quick: bool,
) -> Iterator[tuple[int, int]]:
    """Yield the number of each file and its number of rows, as the job counts them. A file is read
    if it does not store its number of rows, or if the job has counted another number (`ends`). For
    example, the job counts the rest of a damaged file as one failed row."""
    if not files or (quick and not reader.rows_exact):
        return
    # the statistics in the snapshot come from the job, so they are not used
    if (path := read.locations.get("path")) is not None:
        snapshot = replace(snapshot, root=snapshot.root.contained_in([path]))
    elif isinstance(read, ReadFiles):
        snapshot = replace(snapshot, root=snapshot.root.contained_in(read.paths))
    snapshot, rows = prepared(read, snapshot.with_stats({}), files)
    stored = with_row_counts(snapshot, rows.reader, files).stats if reader.rows_exact else {}
    with ThreadPoolExecutor(THREADS) as pool:
        counts = pool.map(
            lambda file: _rows_of(file, rows, stored.get(file.number), ends.get(file.number)), files
        )
        yield from zip((file.number for file in files), counts, strict=True)


def _rows_of(file: InputFile, rows: FileRows, stored: FileStats | None, known: int | None) -> int:
    if stored is not None:
        stored_rows = stored.rows if file.rows is None else min(stored.rows, file.rows)
        if stored_rows == known or known is None:
            return stored_rows
    listed = rows.reader.count_listed(rows.root.at(file.path))
    if listed is not None:  # do not fetch the URIs in a list, which is untrusted
        return listed
    return sum(size_of(chunk) for chunk in rows.chunks(file))
