"""One schema for all Parquet files of an output.

A task knows the types of its own rows alone: a column in which none of them has a value has the
type null there, one that none of them has is not there at all, and where all are whole numbers it
does not know of the fractions elsewhere. Readers that go by their first file then fail, or leave
the column out. So such files are written anew, before the output counts as complete.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.manifest import Manifest, WrittenFile
from batchinference.pipeline.storage import Address


@dataclass(frozen=True)
class Rewrite:
    """The files of a task, which get columns of these types."""

    place: Address
    manifest: Manifest
    types: pa.Schema
    compression: str

    def __call__(self) -> Manifest:
        """Returns the manifest as it is then."""
        data = [self._written(file.name) for file in self.manifest.data]
        new = {field.name: str(field.type) for field in self.types}
        columns = list((dict(self.manifest.columns) | new).items())
        return replace(self.manifest, data=data, columns=columns)

    def _written(self, name: str) -> WrittenFile:
        file = self.place / name
        table = pq.read_table(pa.BufferReader(file.read()), partitioning=None)
        sink = pa.BufferOutputStream()
        pq.write_table(_typed(table, self.types), sink, compression=self.compression)
        content = memoryview(sink.getvalue())
        file.write(content)
        return WrittenFile(name, len(content))


def rewrites(place: Address, manifests: list[Manifest], compression: str) -> list[Rewrite]:
    """What is to be written anew, a piece of work for each task's files. Columns whose types have
    nothing in common stay as they are."""
    written = [manifest for manifest in manifests if manifest.data]
    uneven = _uneven([dict(manifest.columns) for manifest in written])
    types = _types(place, written, uneven)
    found = []
    for manifest in written:
        there = dict(manifest.columns)
        fields = [field for field in types if there.get(field.name) != str(field.type)]
        if fields:
            found.append(Rewrite(place, manifest, pa.schema(fields), compression))
    return found


def _uneven(files: list[dict[str, str]]) -> set[str]:
    """Columns that are not in all files, or of another type in some."""
    kinds: dict[str, set[str | None]] = defaultdict(set)
    for name in {name for file in files for name in file}:
        kinds[name] = {file.get(name) for file in files}
    return {name for name, types in kinds.items() if len(types) > 1}


def _types(place: Address, manifests: list[Manifest], uneven: set[str]) -> pa.Schema:
    """The type that holds all values of each of these columns, from one file of each kind."""
    kinds: dict[str, dict[str, pa.Field]] = {name: {} for name in sorted(uneven)}
    for manifest in manifests:
        new = [name for name, kind in manifest.columns if kind not in kinds.get(name, {kind})]
        if new:
            schema = pq.read_schema(pa.BufferReader((place / manifest.data[0].name).read()))
            there = dict(manifest.columns)
            for name in new:
                kinds[name][there[name]] = schema.field(name)
    common = (_common(list(fields.values())) for fields in kinds.values())
    return pa.schema([field for field in common if field is not None])


def _common(fields: list[pa.Field]) -> pa.Field | None:
    """None where there is no such type."""
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
            with suppress(pa.ArrowInvalid):  # a whole number that has more digits than a float
                table = table.set_column(index, field.name, table.column(index).cast(field.type))
        else:
            table = table.append_column(field.name, pa.nulls(table.num_rows, field.type))
    return table
