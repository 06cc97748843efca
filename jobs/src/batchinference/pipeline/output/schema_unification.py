"""Unifies the schemas of all Parquet files of an output.

A task knows only the types of its own rows. A column that has no value in any of these rows gets
the type null. A column that none of these rows has is missing. A column of whole numbers becomes an
integer column, even if other tasks have fractions in it. Readers that use the schema of the first
file then fail or drop the column. Such files are therefore written again before the output counts
as complete. The new files have new names. The old files are deleted after a snapshot names the new
ones (`Attempt.put_unified`).
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.layout import renamed_part
from batchinference.pipeline.commit.manifest_entry import DataFile, ManifestEntry
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.arrow_files import parquet_schema, read_table
from batchinference.pipeline.storage.location import Location


@dataclass(frozen=True)
class RewriteTask:
    """Writes the files of a manifest entry again, so that their columns have these types."""

    attempt: Attempt
    entry: ManifestEntry
    types: pa.Schema
    compression: str

    def __call__(self) -> ManifestEntry:
        """Write the new files and return the entry that names them.

        Raises BadOutput, and leaves no files, if this task is late."""
        new = {field.name: str(field.type) for field in self.types}
        columns = list((dict(self.entry.columns) | new).items())
        data = [self._rewritten(file.name) for file in self.entry.data]
        return replace(self.entry, data=data, columns=columns)

    def _rewritten(self, old: str) -> DataFile:
        place = self.attempt.layout.data
        table = read_table(pa.BufferReader((place / old).read()))
        ((_, content),) = ParquetWriter(self.compression).files(_typed(table, self.types))
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


def rewrites(
    attempt: Attempt, entries: list[ManifestEntry], compression: str
) -> dict[int, RewriteTask]:
    """Return the required rewrites, by the index of the manifest entry. Columns without a common
    type are not changed."""
    written = [entry for entry in entries if entry.data]
    uneven = _uneven([dict(entry.columns) for entry in written])
    types = _types(attempt.layout.data, written, uneven)
    found = {}
    for number, entry in enumerate(entries):
        there = dict(entry.columns)
        fields = [field for field in types if there.get(field.name) != str(field.type)]
        if entry.data and fields:
            found[number] = RewriteTask(attempt, entry, pa.schema(fields), compression)
    return found


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
    common = (_common(list(fields.values())) for fields in kinds.values())
    return pa.schema([field for field in common if field is not None])


def _common(fields: list[pa.Field]) -> pa.Field | None:
    """Return the field with the common type, or None if there is no such type."""
    try:
        (field,) = pa.unify_schemas(
            [pa.schema([field]) for field in fields], promote_options="permissive"
        )
        for each in fields:
            pa.nulls(0, each.type).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None
    return field


def _typed(table: pa.Table, types: pa.Schema) -> pa.Table:
    for field in types:
        if field.name in table.column_names:
            index = table.column_names.index(field.name)
            with suppress(pa.ArrowInvalid):  # an integer has more digits than a float can hold
                table = table.set_column(index, field.name, table.column(index).cast(field.type))
        else:
            table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
    return table
