"""Rewrites the files of a manifest entry without the rows of input files that have changed or are
gone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.retry_errors import ids_of
from batchinference.pipeline.output.file_rewrites import put_renamed, unchanged_content
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import ROW_BITS
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import damaged_state


def without_removed(
    attempt: Attempt, entry: ManifestEntry, writer: RewritingWriter
) -> ManifestEntry:
    """Write the files of an entry without its removed rows, and return the entry that names them.

    Raises BadOutput if a file has changed, or if this task is late."""
    data, numbers = list[DataFile](), dict[int, int]()
    for number, file in enumerate(entry.data):
        runs = [(one, count) for one in entry.origins for at, count in one.rows if at == number]
        counts, rows = [not one.removed for one, _ in runs], [count for _, count in runs]
        kept = _kept(attempt, attempt.layout.data, file, writer, counts, rows)
        if kept is not None:
            numbers[number] = len(data)
            data.append(kept)
    origins = [
        replace(one, rows=[(numbers[at], count) for at, count in one.rows if at in numbers])
        for one in entry.origins
        if not one.removed
    ]
    errors = _errors(attempt, entry, entry.errors) if entry.errors else None
    return replace(entry, data=data, errors=errors, origins=origins)


def _errors(attempt: Attempt, entry: ManifestEntry, file: DataFile) -> DataFile | None:
    """Write the error records of an entry without those of removed rows, and return the file."""
    place, writer = attempt.layout.errors, ParquetWriter("snappy")
    files = ids_of(writer.read(unchanged_content(place, file))) >> ROW_BITS
    counts = ~np.isin(files, [origin.file for origin in entry.removed])
    return _kept(attempt, place, file, writer, counts.tolist(), [1] * len(counts))


def _kept(
    attempt: Attempt,
    place: Location,
    file: DataFile,
    writer: RewritingWriter,
    counts: list[bool],
    rows: list[int],
) -> DataFile | None:
    """Return a file with the rows that count; None if there are none. `counts` says so for the
    first `rows[0]` rows, the next `rows[1]` rows, and so on."""
    if all(counts):
        return file
    if not any(counts):
        return None
    table = writer.read(unchanged_content(place, file))
    if table.num_rows != sum(rows):
        raise damaged_state(attempt.place)
    left = table.filter(pa.array(np.repeat(counts, rows)))
    return put_renamed(attempt, place, file, writer.write([left]))
