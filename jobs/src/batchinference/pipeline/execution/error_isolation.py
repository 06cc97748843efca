"""Finds the failing row: a batch that raises is halved until the row that raises is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_row

Apply = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Part:
    """Neighbouring rows of a batch, and what came of them: a table, or an error for one row."""

    start: int
    rows: int
    result: pa.Table | Exception


def isolate(apply: Apply, batch: pa.Table, start: int = 0) -> Iterator[Part]:
    """The results of `apply` over a batch, in order, with each row that raises set aside alone.

    Costs up to 2 x log2(rows) further calls a bad row. What says nothing about a row is raised:
    see `is_about_the_row`.
    """
    result = _try(apply, batch)
    if isinstance(result, pa.Table) or batch.num_rows == 1:
        yield Part(start, batch.num_rows, result)
        return
    half = batch.num_rows // 2
    yield from isolate(apply, batch.slice(0, half), start)
    yield from isolate(apply, batch.slice(half), start + half)


def _try(apply: Apply, batch: pa.Table) -> pa.Table | Exception:
    # not halved in here, where the error of the whole would become the context of each row's own
    try:
        return apply(batch)
    except Exception as error:
        if not is_about_the_row(error):
            raise
        return error
