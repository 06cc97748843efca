"""Finds failing rows: halves a batch that raises until each failing row is alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.steps.base import Transform, TransformResult, checked


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a batch and their result, or the error of one row."""

    start: int
    rows: int
    result: pa.Table | TransformResult | Exception


def isolate(apply: Transform, batch: pa.Table, start: int = 0) -> Iterator[Part]:
    """Yield the results of `apply` over a batch, in order. Each failed row is a part of its own. If
    a result is of fewer rows, the next part begins after them.

    Makes up to 2 x log2(rows) additional calls per failed row. Raises errors that are not about a
    row: see `is_about_the_row`.
    """
    stop = start + batch.num_rows
    while True:
        result = _try(apply, batch)
        if isinstance(result, Exception) and batch.num_rows > 1:
            break
        rows = result.rows if isinstance(result, TransformResult) else None
        rows = batch.num_rows if rows is None else rows
        yield Part(start, rows, result)
        start, batch = start + rows, batch.slice(rows)
        if start == stop:
            return
    half = batch.num_rows // 2
    yield from isolate(apply, batch.slice(0, half), start)
    yield from isolate(apply, batch.slice(half), start + half)


def _try(apply: Transform, batch: pa.Table) -> pa.Table | TransformResult | Exception:
    # do not halve here: this error would become the context of the errors of single rows
    try:
        return checked(apply(batch))
    except Exception as error:
        if not is_about_the_row(error):
            raise
        return error
