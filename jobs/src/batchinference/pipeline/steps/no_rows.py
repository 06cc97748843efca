"""Finds the columns after a step of which no row is left, or to which no row has come."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.column_types import arrow_type
from batchinference.pipeline.row_batch import without_rows
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import Transform, TransformResult, load_step
from batchinference.spec.column_types import parse_types

if TYPE_CHECKING:
    from batchinference.spec.decode import Decode
    from batchinference.spec.steps import Step

_QUICK = frozenset({"add_columns", "drop_columns", "explode", "filter", "select_columns"})
"""The kinds of steps that load nothing, and that change the types of columns."""
_MADE_OF_VALUES = frozenset({"model", "python", "decode"})
"""The kinds of steps whose result has no type without values."""


def columns_after_all(
    steps: Sequence[Step], columns: pa.Schema, *, code_keeps_columns: bool = False
) -> pa.Schema:
    """Return the columns after all steps, as far as they are known without rows. `columns` are
    those of the input; none if they are unknown. Columns of unknown types are null. No columns are
    known after user code, unless `code_keeps_columns`."""
    table = columns.empty_table()
    for step in steps:
        if step.python is not None and code_keeps_columns:
            continue
        loaded = load_step(step, Device()) if step.kind in _QUICK else None
        table = result_without_rows(step, table, loaded)
    return table.schema


def result_without_rows(
    step: Step, table: pa.Table, transform: Transform | None = None
) -> pa.Table:
    """Return the columns that a step would return for rows with the columns of a table. Columns of
    unknown types are null. There are no columns if they are unknown.

    `transform` is called without rows, unless its result has no type without values."""
    from batchinference.plan.columns import columns_after  # most workers do not need it
    from batchinference.plan.output_types import output_type

    empty = without_rows([table])
    if transform is not None and step.kind not in _MADE_OF_VALUES:
        with suppress(Exception):
            result = transform(empty)
            result = result.table if isinstance(result, TransformResult) else result
            if result.num_columns:
                return without_rows([result])
    before = {new: old for old, new in (step.rename_columns or {}).items()}
    types = dict(zip(empty.column_names, empty.schema.types, strict=True))
    if step.model is not None:
        made = output_type(step.model)
        types[step.model.output] = pa.null() if made is None else arrow_type(made)
    if step.chunk is not None:
        types |= dict.fromkeys(step.chunk.numbers_added, pa.int64())
    if step.decode is not None:
        types |= _types_of_decoded(step.decode)
    names = columns_after(step, empty.column_names or None) or []
    known = ((name, types.get(before.get(name, name), pa.null())) for name in names)
    return pa.schema(list(known)).empty_table()


def _types_of_decoded(decode: Decode) -> dict[str, pa.DataType]:
    """Return the types of the columns that a decode step adds. Tensors are lists."""
    from batchinference.spec.decode import SAMPLE_RATE, DecodeAudio, DecodeImage, DecodeJson

    name = decode.columns_added[0]
    match decode:
        case DecodeJson():
            return {name: arrow_type(parse_types(decode.fields))}
        case DecodeImage():
            row = pa.list_(pa.uint16() if decode.mode == "I;16" else pa.uint8())
            return {name: pa.list_(row if decode.mode in ("L", "I;16") else pa.list_(row))}
        case DecodeAudio():
            samples = pa.list_(pa.float32())
            return {name: samples if decode.mono else pa.list_(samples), SAMPLE_RATE: pa.int64()}
    return {name: pa.string()}
