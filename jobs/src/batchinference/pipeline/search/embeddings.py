"""Finds the columns of an output that hold embeddings."""

from __future__ import annotations

import pyarrow as pa

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.storage.location import Location


def is_embedding(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists of floating-point numbers."""
    return _is_list(kind) and pa.types.is_floating(kind.value_type)


def is_for_machines(kind: pa.DataType) -> bool:
    """Return whether a column holds embeddings or tensors, which are not readable for people."""
    return is_embedding(kind) or (_is_list(kind) and _is_list(kind.value_type))


def _is_list(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in lists)


def embedding_column(output: Location, schema: pa.Schema, column: str | None) -> str:
    """Return the embedding column to search: `column` if given, otherwise the only one.

    Raises BadInput, which lists the available columns, if there is no such column or no single one.
    """
    there = [field.name for field in schema if is_embedding(field.type)]
    named = ", ".join(there)
    if not there:
        columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise BadInput(f"'{output.uri}' holds no embeddings, which are lists of float16, float32 "
                       f"or float64, not of whole numbers: its columns are {columns}")  # fmt: skip
    if column is not None and column not in there:
        kind = f"is {schema.field(column).type}" if column in schema.names else "is not there"
        raise BadInput(f"column '{column}' of '{output.uri}' {kind}; embeddings are in {named}")
    if column is None and len(there) > 1:
        raise BadInput(f"'{output.uri}' holds embeddings in {named}: name one of these columns")
    return column or there[0]
