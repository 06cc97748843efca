"""Rewrites data and error files without the rows of input files that have changed or are gone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.retry_failed_rows import ids_of
from batchinference.pipeline.output.file_rewrites import put_renamed, unchanged_content
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import ROW_BITS
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import damaged_state


def without_removed(
    attempt: Attempt, entry: ManifestEntry, writer: RewritingWriter
) -> ManifestEntry:
    """Write the files of an entry without its removed rows, and return the entry of the new files.
    Raises BadOutput if a file has changed, or if another attempt has begun."""
    data, new_indexes = list[DataFile](), dict[int, int]()
    for index, file in enumerate(entry.data):
        runs = [(one, rows) for one in entry.origins for at, rows in one.rows if at == index]
        keep, lengths = [not one.removed for one, _ in runs], [rows for _, rows in runs]
        new = _rewrite(attempt, attempt.layout.data, file, writer, keep, lengths)
        if new is not None:
            new_indexes[index] = len(data)
            data.append(new)
    origins = [
        replace(one, rows=[(new_indexes[at], rows) for at, rows in one.rows if at in new_indexes])
        for one in entry.origins
        if not one.removed
    ]
    errors = _rewrite_errors(attempt, entry, entry.errors) if entry.errors else None
    return replace(entry, data=data, errors=errors, origins=origins)


def _rewrite_errors(attempt: Attempt, entry: ManifestEntry, file: DataFile) -> DataFile | None:
    """Write the error records of an entry without those of removed rows; None if none remain."""
    directory, writer = attempt.layout.errors, ParquetWriter("snappy")
    files = ids_of(writer.read(unchanged_content(directory, file))) >> ROW_BITS
    keep = ~np.isin(files, [origin.file for origin in entry.removed])
    return _rewrite(attempt, directory, file, writer, keep.tolist(), [1] * len(keep))


def _rewrite(
    attempt: Attempt,
    directory: Location,
    file: DataFile,
    writer: RewritingWriter,
    keep: list[bool],
    lengths: list[int],
) -> DataFile | None:
    """Write a file without its removed rows, and return it; None if no row remains. `keep[i]` is
    whether to keep the next `lengths[i]` rows of the file."""
    if all(keep):
        return file
    if not any(keep):
        return None
    table = writer.read(unchanged_content(directory, file))
    if table.num_rows != sum(lengths):
        raise damaged_state(attempt.directory)
    remaining = table.filter(pa.array(np.repeat(keep, lengths)))
    return put_renamed(attempt, directory, file, writer.write([remaining]))
