"""Unifies the schemas of all Parquet files of an output.

A task knows only the types of its own rows. A column that has no value in any of these rows gets
the type null. A column that none of these rows has is missing. A column of whole numbers becomes an
integer column, even if other tasks have fractions in it. Readers that use the schema of the first
file then fail or drop the column. Such files are therefore rewritten before the output counts as
complete.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest_entry import DataFile, ManifestEntry
from batchinference.pipeline.commit.missing_files import Retyped
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.arrow_files import parquet_schema, read_table
from batchinference.pipeline.storage.location import Location


@dataclass(frozen=True)
class RewriteTask:
    """Rewrites the files of a manifest entry so that their columns have these types."""

    attempt: Attempt
    entry: ManifestEntry
    types: pa.Schema
    compression: str

    def __call__(self) -> ManifestEntry:
        """Rewrite the files and return the updated manifest entry.

        Raises BadOutput if another run has taken over the output."""
        new = {field.name: str(field.type) for field in self.types}
        columns = list((dict(self.entry.columns) | new).items())
        data = [self._written(file.name, columns) for file in self.entry.data]
        return replace(self.entry, data=data, columns=columns)

    def _written(self, name: str, columns: list[tuple[str, str]]) -> DataFile:
        file = self.attempt.layout.data / name
        table = read_table(pa.BufferReader(file.read()))
        ((_, content),) = ParquetWriter(self.compression).files(_typed(table, self.types))
        new = DataFile.of(name, content)
        Retyped(new, columns).put(self.attempt)
        self.attempt.check_lease()
        file.write(content)
        return new


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
        for given in fields:
            pa.nulls(0, given.type).cast(field.type)
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
