"""Computes expressions over rows that were read from the output."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from batchinference.pipeline.expression import ColumnExpression
from batchinference.pipeline.output.python_rows import Row
from batchinference.spec.expression import columns_read_by

ROWS_AT_ONCE = 4096


def values_of_rows(expressions: Mapping[str, str], rows: Iterable[Row]) -> pa.Table:
    """Return the values of named expressions as columns. Raises UnsuitableTypes or Arrow errors."""
    names = sorted(set().union(*map(columns_read_by, expressions.values())))
    computed = {name: ColumnExpression(text, text) for name, text in expressions.items()}
    results = [pa.table(dict.fromkeys(expressions, pa.nulls(0)))]
    remaining = iter(rows)
    while part := list(itertools.islice(remaining, ROWS_AT_ONCE)):
        table = pa.table({name: _array([row.get(name) for row in part]) for name in names})
        results.append(pa.table({name: values(table) for name, values in computed.items()}))
    return pa.concat_tables(results, promote_options="permissive")


def _array(values: list[Any]) -> pa.Array:
    """Return Python values as an array. Raises Arrow errors."""
    try:
        return pa.array(values)
    except OverflowError as error:
        raise pa.ArrowInvalid(f"an integer is too large for int64: {error}") from None
