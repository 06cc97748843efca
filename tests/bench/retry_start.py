"""Measures the start of a pass that retries failed rows: `retry_start.py MILLIONS` of rows.

Every hundredth row has failed, so that no two failed rows are adjacent. Prints seconds, the bytes
of the snapshot with which the pass starts, and the peak memory in MiB before and after.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time

import pyarrow as pa

from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.retry_failed_rows import without_failed_rows
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.output.error_records import error_records
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import RowBatch, consecutive_ids
from batchinference.pipeline.storage.location import Location
from batchinference.spec.progress import Counts

EACH, FAILED = 100_000, 1_000
"""Rows of a file, which one write task writes, and the number of them that failed."""


def piece_of(file: int, paths: pa.ChunkedArray, errors: Location) -> ManifestEntry:
    every = EACH // FAILED
    failed = RowBatch.unreadable(consecutive_ids(file, 0, EACH)[::every], ValueError("no"))
    records = error_records(failed.errors, paths)
    ((ending, content),) = ParquetWriter("snappy").files(records)
    name = f"part-{file}{ending}"
    (errors / name).write(content)
    counts = Counts(read=EACH, written=EACH - FAILED, failed=FAILED)
    return ManifestEntry(counts, [(file, 0, EACH)], [], [], [], DataFile.of(name, content))


def main(files: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        errors, paths = Location(directory), pa.chunked_array([[f"{n}.txt" for n in range(files)]])
        entries = [piece_of(file, paths, errors) for file in range(files)]
        snapshot = Snapshot("work", "input", entries, dict.fromkeys(range(files), EACH))
        began, before = time.monotonic(), _peak()
        start = without_failed_rows(snapshot, errors)
        size = len(start.serialized())
        gaps = start.missing_rows(files, None)
        seconds = time.monotonic() - began
        assert sum(map(len, gaps.values())) == files * FAILED
        print(f"{seconds:.2f} s, {size} bytes, {before} MiB before and {_peak()} MiB after")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main(int(sys.argv[1]) * 1_000_000 // EACH)
