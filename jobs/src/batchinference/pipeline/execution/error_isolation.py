"""Finds failing rows: halves a batch that raises until each failing row is alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.steps.base import Transform, TransformResult


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a batch and their result, or the error of one row."""

    start: int
    rows: int
    result: pa.Table | TransformResult | Exception


def isolate(apply: Transform, batch: pa.Table, start: int = 0) -> Iterator[Part]:
    """Yield the results of `apply` over a batch, in order. Each failed row is a part of its own.

    Makes up to 2 x log2(rows) additional calls per failed row. Raises errors that are not about a
    row: see `is_about_the_row`.
    """
    result = _try(apply, batch)
    if not isinstance(result, Exception) or batch.num_rows == 1:
        yield Part(start, batch.num_rows, result)
        return
    half = batch.num_rows // 2
    yield from isolate(apply, batch.slice(0, half), start)
    yield from isolate(apply, batch.slice(half), start + half)


def _try(apply: Transform, batch: pa.Table) -> pa.Table | TransformResult | Exception:
    # do not halve here: this error would become the context of the errors of single rows
    try:
        return apply(batch)
    except Exception as error:
        if not is_about_the_row(error):
            raise
        return error
