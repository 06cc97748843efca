"""Rewrites the Parquet files of a finished output: one schema for all, and no small files.

A task knows only the types of its own rows. A column that has no value in any of these rows gets
the type null. A column that none of these rows has is missing. A column of whole numbers becomes an
integer column, even if other tasks have fractions in it. Readers that use the schema of the first
file then fail or drop the column. A small job also commits after a few rows, so that it shows
progress. Such files are therefore written again before the output counts as complete. The new files
have new names. The old files are deleted after a snapshot names the new ones
(`Attempt.put_unified`).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import renamed_part
from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry, total
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.schema import unify_field
from batchinference.pipeline.storage.arrow_files import parquet_schema, read_table
from batchinference.pipeline.storage.location import Location

SMALL_BYTES, MERGED_BYTES = 8 << 20, 32 << 20
"""Files of up to SMALL_BYTES are merged to files of up to MERGED_BYTES."""
MERGED_ROWS = 10_000
"""The maximum number of rows of a merged file. Values that repeat take much more memory than they
take in a file, so that the bytes of the files do not limit the memory."""


@dataclass(frozen=True)
class RewriteTask:
    """Writes the files of manifest entries again, so that their columns have these types. The files
    of several entries are merged."""

    attempt: Attempt
    entries: list[ManifestEntry]
    types: pa.Schema
    compression: str

    @property
    def size(self) -> int:
        return sum(map(_size, self.entries))

    @property
    def rows(self) -> int:
        return sum(map(_rows, self.entries))

    def __call__(self) -> list[ManifestEntry]:
        """Write the new files and return the entries that name them.

        Raises BadOutput, and leaves no files, if this task is late."""
        names = [name for name, _ in _columns(self.entries[0], self.types)]
        tables = [
            [self._typed(file.name).select(names) for file in entry.data] for entry in self.entries
        ]
        first, *others = (table.schema for each in tables for table in each)
        if len(self.entries) > 1 and all(map(first.equals, others)):
            return [self._merged(pa.concat_tables([one for each in tables for one in each]))]
        return [self._rewritten(*pair) for pair in zip(self.entries, tables, strict=True)]

    def _rewritten(self, entry: ManifestEntry, tables: list[pa.Table]) -> ManifestEntry:
        pairs = zip(entry.data, tables, strict=True)
        data = [self._put(self.attempt.layout.data, old.name, table) for old, table in pairs]
        return replace(entry, data=data, columns=_columns(entry, self.types))

    def _merged(self, table: pa.Table) -> ManifestEntry:
        layout, first = self.attempt.layout, self.entries[0]
        errors = [one.errors.name for one in self.entries if one.errors]
        records = [_read(layout.errors / name) for name in errors]
        return ManifestEntry(
            total(entry.counts for entry in self.entries),
            [each for entry in self.entries for each in entry.row_ranges],
            [],
            [self._put(layout.data, first.data[0].name, table)],
            _columns(first, self.types),
            self._put(layout.errors, errors[0], pa.concat_tables(records)) if errors else None,
        )

    def _typed(self, name: str) -> pa.Table:
        table = _read(self.attempt.layout.data / name)
        for field in self.types:
            if field.name in table.column_names:
                index = table.column_names.index(field.name)
                with suppress(pa.ArrowInvalid):  # an integer has more digits than a float can hold
                    column = table.column(index).cast(field.type)
                    table = table.set_column(index, field.name, column)
            else:
                table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
        return table

    def _put(self, place: Location, old: str, table: pa.Table) -> DataFile:
        ((_, content),) = ParquetWriter(self.compression).files(table)
        self.attempt.check_rewrite()
        name = renamed_part(old, uuid.uuid4().hex[:8])
        file = place.inside(name)
        file.write(content)
        try:
            self.attempt.check_rewrite()
        except BadOutput:
            file.delete()
            raise
        return DataFile.of(name, content)


def fit_in_driver(tasks: list[RewriteTask]) -> bool:
    """Return whether the files of these tasks are small enough to be read in the driver."""
    size, rows = sum(task.size for task in tasks), sum(task.rows for task in tasks)
    return size <= MERGED_BYTES and rows <= MERGED_ROWS


def rewrites(
    attempt: Attempt,
    entries: list[ManifestEntry],
    compression: str,
    mergeable: Collection[str] = (),
) -> tuple[list[RewriteTask], list[ManifestEntry]]:
    """Return the required rewrites, and the other entries. Columns without a common type are not
    changed. Entries are merged if all their files are small and in `mergeable`."""
    written = [entry for entry in entries if entry.data]
    uneven = _uneven([dict(entry.columns) for entry in written])
    types = _types(attempt.layout.data, written, uneven)
    tasks, others = [], [entry for entry in entries if not entry.data]
    for group in _groups(written, types, mergeable):
        there = [dict(entry.columns) for entry in group]
        fields = [
            field for field in types if any(t.get(field.name) != str(field.type) for t in there)
        ]
        if fields or len(group) > 1:
            tasks.append(RewriteTask(attempt, group, pa.schema(fields), compression))
        else:
            others += group
    return tasks, others


def _groups(
    entries: list[ManifestEntry], types: pa.Schema, mergeable: Collection[str]
) -> Iterator[list[ManifestEntry]]:
    """Yield the entries whose files become one file. They are in the order of the input and have
    the same columns."""
    small: dict[object, list[ManifestEntry]] = defaultdict(list)
    for entry in entries:
        # a row of which a part has failed must stay apart, because a retry removes its whole entry
        apart = entry.shares or entry.counts.failed >= entry.counts.read
        merges = not apart and all(file.name in mergeable for file in entry.data)
        if merges and _size(entry) <= SMALL_BYTES and _rows(entry) < MERGED_ROWS:
            small[frozenset(_columns(entry, types))].append(entry)
        else:
            yield [entry]
    for alike in small.values():
        group: list[ManifestEntry] = []
        for entry in sorted(alike, key=lambda entry: entry.row_ranges):
            larger = [*group, entry]
            if sum(map(_size, larger)) > MERGED_BYTES or sum(map(_rows, larger)) > MERGED_ROWS:
                yield group
                larger = [entry]
            group = larger
        yield group


def _size(entry: ManifestEntry) -> int:
    return sum(file.bytes for file in entry.data)


def _rows(entry: ManifestEntry) -> int:
    return entry.counts.written


def _columns(entry: ManifestEntry, types: pa.Schema) -> list[tuple[str, str]]:
    """Return the columns of an entry after its files were given these types."""
    return list((dict(entry.columns) | {field.name: str(field.type) for field in types}).items())


def _uneven(files: list[dict[str, str]]) -> set[str]:
    """Return the columns that some files lack, or that have different types in different files."""
    names = {name for file in files for name in file}
    return {name for name in names if len({file.get(name) for file in files}) > 1}


def _types(place: Location, entries: list[ManifestEntry], uneven: set[str]) -> pa.Schema:
    """Return a type for each uneven column that can hold all of its values. Reads one file for
    each type of a column. Columns without a common type are omitted."""
    kinds: dict[str, dict[str, pa.Field]] = {name: {} for name in sorted(uneven)}
    for entry in entries:
        new = [name for name, kind in entry.columns if kind not in kinds.get(name, {kind})]
        if new:
            schema = parquet_schema(pa.BufferReader((place / entry.data[0].name).read()))
            there = dict(entry.columns)
            for name in new:
                kinds[name][there[name]] = schema.field(name)
    common = (unify_field(list(fields.values())) for fields in kinds.values())
    return pa.schema([field for field in common if field is not None])


def _read(file: Location) -> pa.Table:
    return read_table(pa.BufferReader(file.read())).replace_schema_metadata()
