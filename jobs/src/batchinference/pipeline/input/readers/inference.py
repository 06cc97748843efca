"""Finds column types that apply to all files of an input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.schema import unify_types

Clash = Callable[[pa.DataType, pa.DataType], pa.DataType]
"""Returns the type of a column that has two types, neither of which can be widened to the other."""


def agreed_types(schemas: Iterable[pa.Schema], clash: Clash) -> dict[str, pa.DataType]:
    """Return the type of each column, for file formats without a schema.

    If files differ, the wider type is used."""
    agreed: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            known = agreed.get(field.name, field.type)
            wider = unify_types(known, field.type)
            agreed[field.name] = clash(known, field.type) if wider is None else wider
    return agreed


def shared_types(schemas: Mapping[str, pa.Schema]) -> dict[str, pa.DataType]:
    """Return the type of each column, for file formats with a schema.

    `schemas` maps file names to schemas. If files differ, the wider type is used. Raises BadInput
    if no type can hold the values of two files."""
    shared: dict[str, pa.DataType] = {}
    where: dict[str, str] = {}
    for file, schema in schemas.items():
        for field in schema:
            known = shared.get(field.name, pa.null())
            wider = unify_types(known, field.type)
            if wider is None:
                raise BadInput(
                    f"column '{field.name}' is {known} in {where[field.name]} and {field.type} in "
                    f"{file}, and no type holds both: write these files with one type, or read "
                    "them in two jobs"
                )
            if wider != known:
                shared[field.name], where[field.name] = wider, file
    return shared


def with_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the table with its columns cast to the shared types of all files.

    A column with a wider type than the shared one is not changed. Raises TypeError for a column
    with an incompatible type, and ArrowInvalid for a value that is too large."""
    for place, field in enumerate(table.schema):
        shared = types.get(field.name, field.type)
        if field.type == shared or isinstance(shared, pa.ExtensionType):
            continue
        wider = unify_types(shared, field.type)
        if wider is None:
            raise TypeError(f"column '{field.name}' is {field.type}, and {shared} in other files")
        if wider == shared:
            column = table.column(place).cast(shared)
            table = table.set_column(place, pa.field(field.name, shared), column)
    return table
