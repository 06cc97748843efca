"""Converts the rows of a data file to the columns of an Iceberg table, and filters them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, BoundTerm
from pyiceberg.expressions.visitors import bind
from pyiceberg.expressions.visitors import visit as visit_condition
from pyiceberg.io.pyarrow import (
    _ConvertToArrowExpression,
    _pyarrow_schema_ensure_small_types,
    _to_requested_schema,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping

from batchinference.pipeline.schema import map_types


@dataclass(frozen=True)
class TableRows:
    """The columns of an Iceberg table that are read, and the condition for its rows. `mapping` has
    the field ids of columns of files that store none. Picklable."""

    schema: Schema
    mapping: NameMapping | None = None
    row_filter: BooleanExpression = AlwaysTrue()

    @cached_property
    def types(self) -> pa.Schema:
        """The columns, with the types that the rows get."""
        arrow = _pyarrow_schema_ensure_small_types(
            schema_to_pyarrow(self.schema, include_field_ids=False)
        )
        return pa.schema([(column.name, map_types(column.type, _storage)) for column in arrow])

    def stored(self, file: pa.Schema) -> list[str]:
        """Return the names of the columns of a file with this schema that are read."""
        wanted = {column.field_id for column in self.schema.columns}
        return [column.name for column in self._ids(file).columns if column.field_id in wanted]

    def converted(self, rows: pa.Table, constants: Mapping[str, str]) -> pa.Table:
        """Return rows of a file with the columns of the table. `constants` has the values of
        columns that the file may lack, as `files.PlannedFile` has them.

        Raises ValueError if a timestamp has nanoseconds, and the table has none."""
        ids = self._ids(rows.schema)
        values = {
            int(number): from_bytes(self.schema.find_type(int(number)), bytes.fromhex(value))
            for number, value in constants.items()
            if int(number) in self.schema.field_ids
        }
        batches = [
            pa.Table.from_batches(
                [
                    _to_requested_schema(
                        self.schema,
                        ids,
                        batch,
                        projected_missing_fields=values,
                        allow_timestamp_tz_mismatch=True,
                    )
                ]
            ).cast(self.types)
            for batch in rows.to_batches()
        ]
        return pa.concat_tables(batches) if batches else self.types.empty_table()

    def matching(self, rows: pa.Table) -> pa.Array | None:
        """Return which of the converted rows match the condition; None if all do."""
        if self.row_filter == AlwaysTrue():
            return None
        condition = visit_condition(
            bind(self.schema, self.row_filter, case_sensitive=True), _SqlCondition(self.schema)
        )
        found = ds.InMemoryDataset(rows).to_table(columns={"": condition}).column(0)
        return found.fill_null(False)

    def _ids(self, file: pa.Schema) -> Schema:
        return pyarrow_to_schema(file, self.mapping, downcast_ns_timestamp_to_us=True)


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


class _SqlCondition(_ConvertToArrowExpression):
    """Converts a condition to one that is null where it is null in SQL."""

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        column = pc.field(self._get_field_name(term))
        return pc.if_else(column.is_valid(), super().visit_in(term, literals), None)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> pc.Expression:
        return ~self.visit_in(term, literals)
