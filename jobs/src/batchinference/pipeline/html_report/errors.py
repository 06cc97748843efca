"""Reads a sample of the error records of an output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.output.error_groups import ErrorGroup, Record, group_errors
from batchinference.pipeline.output.error_records import read_error_records

MAX_RECORDS, MAX_FILES, MAX_GROUPS = 10_000, 32, 20
"""Limits on the error records that are read, and on the groups that are shown."""
_COLUMNS = ("path", "row", "step", "error", "traceback", "values")


def sample_errors(layout: Layout, entries: Iterable[ManifestEntry]) -> list[ErrorGroup]:
    """Return the groups of the first MAX_RECORDS error records of these manifest entries."""
    return group_errors(islice(_records(layout, entries), MAX_RECORDS))[:MAX_GROUPS]


def _records(layout: Layout, entries: Iterable[ManifestEntry]) -> Iterator[Record]:
    failed = (entry for entry in entries if entry.errors is not None)
    for table in read_error_records(layout, islice(failed, MAX_FILES)):
        known = [column for column in _COLUMNS if column in table.column_names]
        yield from table.select(known).to_pylist()
