"""Reads the statistics of input files from their footers and headers, each file once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from batchinference.pipeline.input.listing import InputFile, InputSnapshot
from batchinference.pipeline.input.readers.base import FileStats, Reader, StatsReader, blamed
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import with_retries

THREADS = 32
"""Files that are inspected concurrently. Pyarrow opens 25 connections to an object store."""


def read_stats(
    frozen: InputSnapshot, reader: Reader, files: Iterable[InputFile]
) -> dict[int, FileStats]:
    """Return the statistics of these files, by file number, for a reader that counts exactly.

    A damaged file has one row: it becomes a failed row when it is read."""
    chosen, sizes = list(files), frozen.file_sizes

    def inspect(file: InputFile) -> FileStats:
        address = frozen.address(file)
        return with_retries(lambda: _stats(reader, address, sizes[file.number]))

    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(inspect, chosen)
        return {file.number: stats for file, stats in zip(chosen, found, strict=True)}


def _stats(reader: Reader, file: Location, size: int) -> FileStats:
    try:
        if isinstance(reader, StatsReader):
            return reader.stats(file, size)
        return FileStats(reader.rows_in(file, size) or 0)
    except Exception as error:  # noqa: BLE001 - see blamed
        blamed(error)
        return FileStats(1)


def prepare_reader(
    frozen: InputSnapshot, reader: Reader, samples: list[InputFile]
) -> InputSnapshot:
    """Prepare the reader for the column types of the input. Return the snapshot with the statistics
    of the samples, unless it has statistics already."""
    if not isinstance(reader, StatsReader):
        addresses = [frozen.address(file) for file in samples]
        with_retries(lambda: reader.prepare(addresses))
        return frozen
    if not frozen.stats:
        frozen = frozen.with_stats(read_stats(frozen, reader, samples))
    files, known = frozen.files(), frozen.stats
    reader.use_schemas(
        {
            frozen.address(files[number]).uri: stats.schema
            for number, stats in known.items()
            if stats.schema is not None
        }
    )
    return frozen


def with_row_counts(
    frozen: InputSnapshot, reader: Reader, files: Iterable[InputFile]
) -> InputSnapshot:
    """Return the snapshot with the statistics of these files. Reads only those that it lacks."""
    known = frozen.stats
    found = read_stats(frozen, reader, [file for file in files if file.number not in known])
    without_schemas = {number: replace(stats, schema=None) for number, stats in found.items()}
    return frozen.with_stats(known | without_schemas)
