"""Groups the error records of an output by step and cause."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import ManifestEntry
from batchinference.pipeline.output.error_records import cause_of
from batchinference.pipeline.storage.arrow_files import read_tables

MAX_RECORDS, MAX_FILES = 10_000, 32
"""Limits on the error records that are read."""
MAX_GROUPS, MAX_EXAMPLES = 20, 3
_COLUMNS = ("path", "row", "step", "error", "traceback", "values")
Record = dict[str, Any]


@dataclass
class ErrorSample:
    """Failed rows of one step with the same cause: messages that differ in their values only."""

    step: str
    count: int = 0
    examples: list[Record] = field(default_factory=list)
    """The first of its records."""


def sample_errors(layout: Layout, entries: Iterable[ManifestEntry]) -> list[ErrorSample]:
    """Group the first MAX_RECORDS error records of these manifest entries by step and cause, most
    frequent first."""
    groups: dict[tuple[str, str], ErrorSample] = {}
    for record in itertools.islice(_records(layout, entries), MAX_RECORDS):
        step = str(record["step"])
        group = groups.setdefault((step, cause_of(str(record["error"]))), ErrorSample(step))
        group.count += 1
        if len(group.examples) < MAX_EXAMPLES:
            group.examples.append(record)
    return sorted(groups.values(), key=lambda group: -group.count)[:MAX_GROUPS]


def _records(layout: Layout, entries: Iterable[ManifestEntry]) -> Iterator[Record]:
    files = (entry.errors.name for entry in entries if entry.errors is not None)
    for name in itertools.islice(files, MAX_FILES):
        with (layout.errors / name).open_input_file() as source:
            for table in read_tables(source):
                known = [column for column in _COLUMNS if column in table.column_names]
                yield from table.select(known).to_pylist()
