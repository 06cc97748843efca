"""Reads data files of Iceberg tables, whose columns are identified by field ids, not by names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    _pyarrow_schema_ensure_small_types,
    _to_requested_schema,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.file_pruning import FileBounds, bounds_of_group
from batchinference.pipeline.input.parquet_file import OpenParquet
from batchinference.pipeline.input.readers.parquet import read_footer
from batchinference.pipeline.input.readers.table_data_file import VersionedReader
from batchinference.pipeline.input.table_version import TableVersion
from batchinference.pipeline.storage import iceberg_nulls  # noqa: F401 - corrects pyiceberg
from batchinference.pipeline.type_widening import map_types

SCHEMA, MAPPING = b"iceberg.schema", b"schema.name-mapping.default"
"""Keys in the metadata of an Arrow schema: for the Iceberg schema, and for its name mapping, which
has the ids of columns by name."""


@dataclass(frozen=True)
class TableRows:
    """The columns to read from an Iceberg table. `mapping` gives field ids to the columns of files
    that do not store ids."""

    schema: Schema
    mapping: NameMapping | None

    @classmethod
    def of(cls, table: pa.Schema, names: Sequence[str]) -> TableRows:
        """Return the columns with these names. `table` is the schema of a version. Names that are
        not in this schema are ignored."""
        schema = Schema.model_validate_json(table.metadata[SCHEMA])
        known = [column.name for column in schema.columns if column.name in names]
        mapping = table.metadata.get(MAPPING)
        return cls(schema.select(*known), parse_mapping_from_json(mapping) if mapping else None)

    @cached_property
    def types(self) -> pa.Schema:
        """The columns, with their Arrow types in the rows that are read."""
        arrow = schema_to_pyarrow(self.schema, include_field_ids=False)
        small = _pyarrow_schema_ensure_small_types(arrow)
        stored = lambda kind: getattr(kind, "storage_type", kind)  # noqa: E731
        return pa.schema([(column.name, map_types(column.type, stored)) for column in small])

    def names(self, file: pa.Schema) -> dict[str, str]:
        """Return the columns to read from a file of this schema: {name in file: name in table}."""
        wanted = {column.field_id: column.name for column in self.schema.columns}
        stored = self._ids(file).columns
        return {each.name: wanted[each.field_id] for each in stored if each.field_id in wanted}

    def converted(self, rows: pa.Table, constants: dict[int, Any]) -> pa.Table:
        """Return rows of a file with the columns of the table. `constants` has values, by field id,
        for columns that the file may lack."""
        if not self.schema.columns:
            return rows
        ids = self._ids(rows.schema)
        batches = (
            _to_requested_schema(
                self.schema,
                ids,
                batch,
                projected_missing_fields=constants,
                allow_timestamp_tz_mismatch=True,
            )
            for batch in rows.to_batches()
        )
        tables = [pa.Table.from_batches([batch]).cast(self.types) for batch in batches]
        return pa.concat_tables(tables) if tables else self.types.empty_table()

    def _ids(self, file: pa.Schema) -> Schema:
        """Return a file's columns with their field ids. Raises BadInput if an id is unknown."""
        try:
            return pyarrow_to_schema(file, self.mapping, downcast_ns_timestamp_to_us=True)
        except ValueError as error:
            raise BadInput(f"read.table: a data file cannot be read: {error}") from None


class IcebergReader(VersionedReader):
    """Reads a data file of an Iceberg table."""

    def __init__(self, version: TableVersion, names: Sequence[str], where: str | None) -> None:
        super().__init__(version, names, where)
        self._rows = TableRows.of(version.schema, self._schema.names)

    def for_file(
        self, constants: Mapping[str, Any] | None, deleted: bytes | None
    ) -> VersionedReader:
        reader = cast(IcebergReader, super().for_file(constants, deleted))
        known = {name for name, value in (constants or {}).items() if value is not None}
        names = [name for name in self._schema.names if name not in known]
        reader._rows = TableRows.of(self._version.schema, names)
        typed = cast(Any, reader._casts)
        reader._casts = cast(Any, lambda rows: typed(reader._rows.converted(rows, {})))
        return reader

    def _opened(self, source: pa.NativeFile) -> OpenParquet:
        footer = read_footer(source)
        names = list(self._rows.names(footer.schema.to_arrow_schema()))
        options = SimpleNamespace(**{**vars(self._options), "columns": names})
        return OpenParquet(source, footer, cast(Any, options))

    def _bounds(self, footer: pq.FileMetaData, group: int) -> FileBounds:
        names = self._rows.names(footer.schema.to_arrow_schema())
        stored = bounds_of_group(footer, group, names)
        return {names[name]: bounds for name, bounds in stored.items()}
