"""What the pipeline needs of Ray Data's blocks, in one place, because part of it is not public.

Pinned to the Ray version in pyproject.toml; tests/pipeline/data/test_blocks.py notices a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data._internal.arrow_ops.transform_pyarrow import concat as _ray_concat
from ray.data._internal.arrow_ops.transform_pyarrow import unify_schemas
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType
from ray.data.block import BlockAccessor
from ray.data.extensions import (
    ArrowTensorType,
    ArrowTensorTypeV2,
    get_arrow_extension_tensor_types,
)

from batchinference.pipeline.errors import JobFailure

Batch = dict[str, np.ndarray]
"""Column name to an array whose first axis is the row, as `map_batches` gives it to a function."""

_COUNTED = (ArrowTensorType, ArrowTensorTypeV2)
"""Tensors of one shape, whose places Ray computes instead of reading them."""


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables below each other. Columns that one lacks become null; types are widened. Raises
    JobFailure for a column of types that no type holds together."""
    if len(tables) == 1:
        return tables[0]
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    given = _without_untyped(tables)
    try:
        return _ray_concat(given, promote_types=True, preserve_order=True).select(list(names))
    except Exception as error:
        for name in names:
            _refuse_clash(name, given, error)
        raise


def _refuse_clash(name: str, tables: Sequence[pa.Table], error: Exception) -> None:
    kinds = (table.schema.field(name).type for table in tables if name in table.column_names)
    joined = pa.null()
    for kind in dict.fromkeys(kinds):
        wider = joined_type(joined, kind)
        if wider is None:
            raise JobFailure(
                f"column '{name}' is {joined} in some rows and {kind} in others, and no type holds "
                "both: give it one type in the step that makes it, or in a step behind the read"
            ) from error
        joined = wider


def joined_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of a column that holds values of both; None where they cannot be joined."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    tensors = get_arrow_extension_tensor_types()
    if isinstance(one, tensors) != isinstance(other, tensors):
        return None  # which Ray does not notice
    try:
        schemas = [pa.schema([("column", kind)]) for kind in (one, other)]
        return unify_schemas(schemas, promote_types=True).field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _without_untyped(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Without columns of nulls alone where others have tensors, with which Ray cannot join them."""
    kinds = get_arrow_extension_tensor_types()
    fields = (field for table in tables for field in table.schema)
    tensors = {field.name for field in fields if isinstance(field.type, kinds)}
    return [table.drop_columns([field.name for field in table.schema
                                if field.name in tensors and pa.types.is_null(field.type)])
            for table in tables]  # fmt: skip


def to_batch(table: pa.Table) -> Batch:
    """A table as NumPy arrays, the way Ray Data hands them to `map_batches` functions."""
    tensors = get_arrow_extension_tensor_types()
    gaps = []
    for index, field in enumerate(table.schema):
        if isinstance(field.type, tensors):
            chunks = [in_place(chunk) for chunk in table.column(index).chunks]
            table = table.set_column(index, field.name, pa.chunked_array(chunks, field.type))
            gaps += [field.name] if table.column(index).null_count else []
    whole = BlockAccessor.for_block(table.drop_columns(gaps)).to_numpy(
        [name for name in table.column_names if name not in gaps]
    )
    return {
        name: _with_gaps(table.column(name)) if name in gaps else whole[name]
        for name in table.column_names
    }


def in_place(tensors: pa.ExtensionArray) -> pa.ExtensionArray:
    """The same tensors, where Ray takes them to be when it makes one NumPy array of them.

    It counts from the beginning of the memory as if each row before these had a tensor in it. A row
    that is null has none: what comes behind one would be taken for its neighbour.
    """
    if not len(tensors) or not isinstance(tensors.type, _COUNTED):
        return tensors
    storage = tensors.storage
    if storage.offsets[0].as_py() == storage.offset * math.prod(tensors.type.shape):
        return tensors
    return tensors.type.wrap_array(storage.take(pa.array(np.arange(len(tensors)))))


def _with_gaps(tensors: pa.ChunkedArray) -> np.ndarray:
    """Tensors as objects, with None for those that are missing, which Ray Data cannot convert."""
    batch = np.empty(len(tensors), dtype=object)
    there = np.flatnonzero(tensors.is_valid().to_numpy())
    if len(there):
        values = to_batch(pa.table({"tensor": tensors.drop_null()}))["tensor"]
        for place, value in zip(there, values, strict=True):
            batch[place] = value
    return batch


def to_table(columns: Mapping[str, Any]) -> pa.Table:
    """Arrays as a table; arrays of more than one dimension become tensors."""
    return BlockAccessor.batch_to_arrow_block(dict(columns))


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as Ray Data gives them to `map` functions."""
    accessor = BlockAccessor.for_block(table)
    return iter(accessor.iter_rows(public_row_format=True))


def to_column(values: Any) -> pa.ChunkedArray:
    """One column: Arrow data as it is, anything else by the rules of `to_table`.

    Raises TypeError for objects that Ray Data would only pickle.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    column = to_table({"column": values}).column(0)
    if isinstance(column.type, ArrowPythonObjectType):
        raise TypeError("its values have no type in common that Arrow knows")
    return column
