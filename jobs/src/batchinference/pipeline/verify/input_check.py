"""Counts the rows of the input again, and detects input files that have changed since the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.listing import InputFile, InputSnapshot, snapshot_input
from batchinference.pipeline.input.path_columns import PathColumns
from batchinference.pipeline.input.planning import (
    SAMPLED_FILES,
    prepare_reader,
    sample,
    with_row_counts,
)
from batchinference.pipeline.input.readers import reader_for
from batchinference.pipeline.input.readers.base import FileStats, Reader, size_of
from batchinference.pipeline.input.readers.url_list import ManifestReader
from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.input.scan import FileRows
from batchinference.pipeline.input.snapshot import read_snapshot_with_digest
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.pipeline.verify.findings import Found, Kind, Spot
from batchinference.pipeline.verify.jobs import Work
from batchinference.pipeline.verify.row_check import Sizes
from batchinference.spec.read import FileOptions, ReadFiles

THREADS = 8


@dataclass(frozen=True)
class InputRows:
    """The rows of an input. `names` are the names of its parts. `counted` is the number of parts
    that were counted again. For the other parts, the number of rows is the one that the job
    found."""

    names: list[str]
    sizes: Sizes
    counted: int = 0
    found: list[Found] = field(default_factory=list)

    def name(self, part: int) -> str:
        there = part < len(self.names)
        return self.names[part] if there else f"part {part} of the input, which there is not"


def input_rows(work: Work, end: Snapshot, *, quick: bool) -> InputRows:
    """Return the rows of the input, counted again. With `quick`, count only the rows of files that
    store their number of rows.

    Raises BadOutput if it cannot be determined what the input was, and BadInput or JobFailure if
    the input cannot be read."""
    place = work.layout.input
    frozen = read_snapshot_with_digest(place, end.input, work.storage_of_input)
    names = read_table(pa.BufferReader(place.read()), columns=["path"]).column("path").to_pylist()
    ends = {part: rows for part, rows in end.ends.items() if part < len(frozen)}
    read = work.spec.read
    if not isinstance(read, ReadFiles):  # the source may yield other rows by now
        return InputRows(names, Sizes(len(frozen), ends))
    work.check_limits()
    reader = reader_for(read)
    found = _differences(frozen, read, reader)
    if isinstance(reader, WholeFileReader):
        return InputRows(names, Sizes(len(frozen), {}, 1), len(frozen), list(found.values()))
    files = [file for file in frozen.files() if file.number not in found]
    counted = dict(_counted(frozen, read, reader, files, ends, quick=quick))
    sizes = Sizes(len(frozen), ends | counted)
    return InputRows(names, sizes, len(counted), list(found.values()))


def _differences(frozen: InputSnapshot, read: ReadFiles, reader: Reader) -> dict[int, Found]:
    """Return a finding for each file that is gone or has changed, by file number."""
    listed = _listed(frozen, read, reader)
    there = dict(zip(listed.uris, listed.versions, strict=True)) if listed else {}
    found: dict[int, Found] = {}
    for number, (uri, version) in enumerate(zip(frozen.uris, frozen.versions, strict=True)):
        if uri not in there:
            found[number] = (Kind.INPUT_GONE, Spot(uri), 1)
        elif there[uri] != version:
            sizes = f"{version[0]} bytes then, {there[uri][0]} now"
            found[number] = (Kind.INPUT_CHANGED, Spot(uri, detail=sizes), 1)
    return found


def _listed(frozen: InputSnapshot, read: ReadFiles, reader: Reader) -> InputSnapshot | None:
    """Return a listing of the input as it is now; None if nothing of it is left."""
    options: FileOptions = read.options  # type: ignore[attr-defined]
    extensions = options.file_extensions or list(reader.extensions)
    storage = frozen.root.storage
    try:
        return snapshot_input(read.paths, extensions, storage, ignore_missing=True)
    except BadInput:
        if frozen.address(frozen.files()[0]).exists():
            raise
        return None


def _counted(
    frozen: InputSnapshot,
    read: ReadFiles,
    reader: Reader,
    files: list[InputFile],
    ends: Mapping[int, int],
    *,
    quick: bool,
) -> Iterator[tuple[int, int]]:
    """Yield file numbers and numbers of rows. Only the rows that the job reads count. So a file is
    read as the job reads it, a chunk at a time, unless the number of rows that it stores is the
    number that the job found (`ends`). The numbers differ for a damaged file, because the job reads
    its rest as one failed row."""
    if not files or (quick and not reader.rows_exact):
        return
    options: FileOptions = read.options  # type: ignore[attr-defined]
    # the statistics in the snapshot are what the job found
    frozen = prepare_reader(frozen.with_stats({}), reader, sample(files, SAMPLED_FILES))
    stored = with_row_counts(frozen, reader, files).stats if reader.rows_exact else {}
    rows = FileRows(frozen.root, reader, PathColumns.of(options, frozen.uris))
    with ThreadPoolExecutor(THREADS) as pool:
        counts = pool.map(
            lambda file: _rows_of(file, rows, stored.get(file.number), ends.get(file.number)), files
        )
        yield from zip((file.number for file in files), counts, strict=True)


def _rows_of(file: InputFile, rows: FileRows, stored: FileStats | None, found: int | None) -> int:
    if stored is not None:
        told = stored.rows if file.rows is None else min(stored.rows, file.rows)
        if told == found or found is None:
            return told
    if isinstance(rows.reader, ManifestReader):  # others must not choose what verify fetches
        return rows.reader.count_listed(rows.root.at(file.path))
    return sum(size_of(chunk) for chunk in rows.chunks(file))
