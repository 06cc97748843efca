"""Column types that hold for all files of an input whose files carry none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

Clash = Callable[[pa.DataType, pa.DataType], pa.DataType]
"""The type of a column that has two, neither of which can be widened to the other."""


def agreed_types(schemas: Iterable[pa.Schema], clash: Clash) -> dict[str, pa.DataType]:
    """The type of each column of some schemas: the wider one where they differ."""
    agreed: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            known = agreed.get(field.name, field.type)
            agreed[field.name] = _wider(known, field.type, clash)
    return agreed


def _wider(known: pa.DataType, other: pa.DataType, clash: Clash) -> pa.DataType:
    if known == other:
        return known
    schemas = [pa.schema([("column", kind)]) for kind in (known, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return clash(known, other)
