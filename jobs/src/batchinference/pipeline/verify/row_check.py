"""Compares the rows of the input, counted again, with the rows that the manifest entries hold.

A job uses only the entries that fit together (see `row_coverage`). This module uses all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import ManifestEntry, Range
from batchinference.pipeline.commit.retry_errors import ids_of
from batchinference.pipeline.commit.row_coverage import (
    RowSet,
    edges,
    rows_in_all,
    summed_shares,
)
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.file_input import prepared
from batchinference.pipeline.input.file_rows import FileRows
from batchinference.pipeline.input.ignored_files import NONE_IGNORED, IgnoredFiles
from batchinference.pipeline.input.input_snapshot import (
    InputFile,
    InputSnapshot,
    read_own_snapshot,
)
from batchinference.pipeline.input.listing import list_existing
from batchinference.pipeline.input.planning import with_row_counts
from batchinference.pipeline.input.readers import FileStats, Reader, reader_for, size_of
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.row_batch import FULL_SHARE, ROW_BITS, MissingRows, unpack_ids
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Defect, Kind, Spot
from batchinference.pipeline.verify.jobs import StoredJob
from batchinference.spec.read import ReadFiles, ReadVersioned


@dataclass(frozen=True)
class Sizes:
    """The number of rows of each input file: `rows_each` for every file, or its value in `ends`.
    For other files, the number is unknown."""

    files: int
    ends: dict[int, int]
    rows_each: int | None = None

    @property
    def total(self) -> int | None:
        """The number of input rows; None unless the rows of every file are known."""
        if self.rows_each is not None:
            return rows_in_all(self.files, self.ends, self.rows_each)
        return sum(self.ends.values()) if len(self.ends) == self.files else None

    def of(self, files: np.ndarray) -> np.ndarray:
        """Return the number of rows of the files with these numbers, int64: 0 for files that do not
        exist, and the maximum int64 if it is unknown."""
        unknown = np.iinfo(np.int64).max if self.rows_each is None else self.rows_each
        sizes = [
            self.ends.get(file, unknown) if file < self.files else 0 for file in files.tolist()
        ]
        return np.array(sizes, dtype=np.int64)


@dataclass(frozen=True)
class AccountedRows:
    """`held` are the rows that manifest entries hold. `twice` are the rows that they hold more than
    once."""

    held: RowSet
    twice: list[Range]

    @classmethod
    def of(cls, entries: Sequence[ManifestEntry]) -> AccountedRows:
        parted, shares = summed_shares(entries)
        whole, over = parted[shares >= FULL_SHARE], parted[shares > FULL_SHARE]
        starts, stops, _ = edges(entries)
        starts, stops = np.append(starts, whole), np.append(stops, whole + 1)
        held = RowSet.merged(starts, stops)
        part = parted[shares < FULL_SHARE]
        over = np.concatenate([over, part[held.holds(part)]])
        return cls(held, sorted(_repeated(starts, stops) + _named(over, over + 1)))

    @property
    def rows(self) -> int:
        """The number of held rows, each counted once."""
        return self.held.rows

    def missing(self, sizes: Sizes) -> MissingRows:
        """Return the rows of the input that are not held."""
        return self.held.missing(sizes.files, sizes.ends, sizes.rows_each)

    def beyond(self, sizes: Sizes) -> list[Range]:
        """Return the rows that are held but that the input does not have."""
        files, firsts = unpack_ids(self.held.starts)
        base = files << ROW_BITS
        ends = sizes.of(files)
        over = self.held.stops - base > ends
        starts = base + np.maximum(firsts, np.minimum(ends, self.held.stops - base))
        return _named(starts[over], self.held.stops[over])


def _repeated(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    """Return the rows that ranges of ids hold more than once."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    before = np.append(-1, np.maximum.accumulate(stops))[:-1]
    again = starts < before
    return _named(starts[again], np.minimum(stops, before)[again])


def _named(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    files, firsts = unpack_ids(starts)
    after = stops - (files << ROW_BITS)
    return list(zip(files.tolist(), firsts.tolist(), after.tolist(), strict=True))


def wrong_errors(entry: ManifestEntry, file: Location) -> int:
    """Return how many error records of a manifest entry are not among its rows, or are duplicates.

    Raises ArrowInvalid or OSError if the file cannot be read."""
    with file.open_input_file() as source:
        ids = ids_of(read_table(source, columns=["id"]))
    inside = RowSet.of([entry]).holds(ids)
    repeated = len(ids) - len(set(ids.tolist())) if _is_one_to_one(entry) else 0
    return int((~inside).sum()) + repeated


def _is_one_to_one(entry: ManifestEntry) -> bool:
    """Return whether no row has become several rows. These could all fail, with the same id."""
    counts = entry.counts
    return not entry.shares and counts.read == counts.written + counts.failed + counts.filtered


THREADS = 8


@dataclass(frozen=True)
class InputRows:
    """The rows of an input. `names` are the names of its parts. `counted` is the number of parts
    that were counted again. For the other parts, the number of rows is the one that the job
    found."""

    names: list[str]
    sizes: Sizes
    counted: int = 0
    found: list[Defect] = field(default_factory=list)
    ignored: IgnoredFiles = NONE_IGNORED

    def name(self, part: int) -> str:
        known = part < len(self.names)
        return self.names[part] if known else f"part {part}, which is not in the input"


def input_rows(work: StoredJob, end: Snapshot, *, quick: bool) -> InputRows:
    """Return the rows of the input, counted again. With `quick`, count only the rows of files that
    store their number of rows.

    Raises BadOutput if the state of the input is damaged, and BadInput or JobFailure if the input
    cannot be read."""
    attempt = Attempt(work.layout, work.lease)
    frozen, _ = read_own_snapshot(attempt, work.storage_of_input, end.input)
    return replace(_input_rows(work, end, frozen, quick=quick), ignored=frozen.ignored)


def _input_rows(work: StoredJob, end: Snapshot, frozen: InputSnapshot, *, quick: bool) -> InputRows:
    place = work.layout.input
    names = read_table(pa.BufferReader(place.read()), columns=["path"]).column("path").to_pylist()
    for part in frozen.removed:  # a file that has come back is a new file
        names[part] += " (removed)"
    ends = {part: rows for part, rows in end.ends.items() if part < len(frozen)}
    read = work.spec.read
    if not isinstance(read, ReadFiles | ReadVersioned):  # the source may yield other rows by now
        return InputRows(names, Sizes(len(frozen), ends))
    if isinstance(read, ReadVersioned):
        from batchinference.pipeline.input.tables import gone_files, reader_of

        found, names = dict[int, Defect](), frozen.labels
        reader: Reader = reader_of(read, frozen.version)
        # a table removes old files, whose rows are not counted again
        missing = set(gone_files(frozen, range(len(frozen))))
    else:
        reader, found = reader_for(read), _differences(frozen, read)
        missing = found.keys() | frozen.removed
    if isinstance(reader, WholeFileReader):
        sizes = Sizes(len(frozen), dict.fromkeys(frozen.removed, 0), 1)
        return InputRows(names, sizes, len(frozen), list(found.values()))
    files = [file for file in frozen.files() if file.number not in missing]
    counted = dict(_counted(frozen, read, reader, files, ends, quick=quick))
    sizes = Sizes(len(frozen), ends | counted)
    return InputRows(names, sizes, len(counted), list(found.values()))


def _differences(frozen: InputSnapshot, read: ReadFiles) -> dict[int, Defect]:
    """Return a finding for each file that is gone or has changed, by file number."""
    listed = _listed(frozen, read)
    current = dict(zip(listed.uris, listed.versions, strict=True)) if listed else {}
    found: dict[int, Defect] = {}
    for number, (uri, version) in enumerate(zip(frozen.uris, frozen.versions, strict=True)):
        if number in frozen.removed:
            continue
        if uri not in current:
            found[number] = (Kind.INPUT_GONE, Spot(uri), 1)
        elif current[uri] != version:
            sizes = f"{version[0]} bytes then, {current[uri][0]} now"
            found[number] = (Kind.INPUT_CHANGED, Spot(uri, detail=sizes), 1)
    return found


def _listed(frozen: InputSnapshot, read: ReadFiles) -> InputSnapshot | None:
    """Return a listing of the input as it is now; None if nothing of it is left."""
    try:
        return list_existing(read, frozen.root.storage)
    except BadInput:
        if not len(frozen) or frozen.address(frozen.files()[0]).exists():
            raise
        return None


def _counted(
    frozen: InputSnapshot,
    read: ReadFiles | ReadVersioned,
    reader: Reader,
    files: list[InputFile],
    ends: Mapping[int, int],
    *,
    quick: bool,
) -> Iterator[tuple[int, int]]:
    """Yield file numbers and numbers of rows. Only rows that the job reads are counted. So a file
    is read as the job reads it, one chunk at a time, unless the number of rows that it stores is
    the number that the job found (`ends`). The numbers differ for a damaged file, because the job
    reads its rest as one failed row."""
    if not files or (quick and not reader.rows_exact):
        return
    # the statistics in the snapshot come from the job
    if (path := read.locations.get("path")) is not None:
        frozen = replace(frozen, root=frozen.root.contained_in([path]))
    elif isinstance(read, ReadFiles):
        frozen = replace(frozen, root=frozen.root.contained_in(read.paths))
    frozen, rows = prepared(read, frozen.with_stats({}), files)
    stored = with_row_counts(frozen, rows.reader, files).stats if reader.rows_exact else {}
    with ThreadPoolExecutor(THREADS) as pool:
        counts = pool.map(
            lambda file: _rows_of(file, rows, stored.get(file.number), ends.get(file.number)), files
        )
        yield from zip((file.number for file in files), counts, strict=True)


def _rows_of(file: InputFile, rows: FileRows, stored: FileStats | None, found: int | None) -> int:
    if stored is not None:
        stored_rows = stored.rows if file.rows is None else min(stored.rows, file.rows)
        if stored_rows == found or found is None:
            return stored_rows
    listed = rows.reader.count_listed(rows.root.at(file.path))
    if listed is not None:  # must not fetch URIs that others have chosen
        return listed
    return sum(size_of(chunk) for chunk in rows.chunks(file))
