"""Builds batches of rows, and reads what became of their input rows as plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.errors import describe
from batchinference.pipeline.row_batch import ERRORS, RowBatch, consecutive_ids, merged, pack_id

Run = Callable[[RowBatch], RowBatch]


def good(file: int, first: int, rows: pa.Table | Sequence[Any]) -> RowBatch:
    """Return rows of a file from row `first` on: a table, or the values of a column `n`."""
    table = rows if isinstance(rows, pa.Table) else pa.table({"n": rows})
    return RowBatch.read(table, consecutive_ids(file, first, table.num_rows))


def failed(file: int, row: int, step: str = "own", error: Exception | None = None) -> RowBatch:
    """Return a failed row of a file."""
    ids = consecutive_ids(file, row, 1)
    columns = [ids.tolist(), [step], [describe(error or ValueError("no"))], [""], [None]]
    return RowBatch(input_ids=ids, errors=pa.table(columns, schema=ERRORS))


def filtered(file: int, *rows: int) -> RowBatch:
    """Return filtered rows of a file."""
    ids = np.array([pack_id(file, row) for row in rows], dtype=np.int64)
    return RowBatch(input_ids=ids, filtered=ids)


def as_one_batch(run: Callable[[RowBatch], Iterator[RowBatch]]) -> Run:
    """Return a function that runs steps over a batch and returns all results as one batch."""
    return lambda batch: merged(run(batch))


def end(file: int, rows: int) -> RowBatch:
    """Return the end of a file of this many rows."""
    return RowBatch(ends=((file, rows),))


def outcomes(batch: RowBatch) -> dict[int, str]:
    """Return the outcome of each input row by id: `good`, `failed` or `filtered`, or several of
    them (such as `good, failed`) for a row that became several rows."""
    failed_ids = batch.errors.column("id").to_numpy()
    ids = {"good": batch.ids, "failed": failed_ids, "filtered": batch.filtered}
    of_outcome = {name: set(result.tolist()) for name, result in ids.items()}
    assert set().union(*of_outcome.values()) <= set(batch.input_ids.tolist())
    return {
        row_id: ", ".join(name for name, result in of_outcome.items() if row_id in result)
        for row_id in sorted(batch.input_ids.tolist())
    }


def errors_of(batch: RowBatch) -> dict[int, str]:
    """Return the error of each failed row by the id of its input row."""
    ids, errors = (batch.errors.column(name).to_pylist() for name in ("id", "error"))
    return dict(zip(ids, errors, strict=True))


def rows_of(batch: RowBatch) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows of the table, each with the id of its input row."""
    return list(zip(batch.ids.tolist(), tensors_to_lists(batch.table).to_pylist(), strict=True))


def shares_of(batch: RowBatch) -> dict[int, int] | None:
    """Return the share of each input row by id; None if the batch holds them completely."""
    if batch.shares is None:
        return None
    return dict(zip(batch.input_ids.tolist(), batch.shares.tolist(), strict=True))


def plain(batch: RowBatch) -> dict[str, Any]:
    """Return all fields of a batch as plain Python. Input rows are sorted, because the order of
    `input_ids` has no meaning."""
    result = {field.name: getattr(batch, field.name) for field in fields(batch)}
    rows = {"rows": rows_of(batch), "columns": batch.table.schema.names}
    sets = {"input_ids": sorted(batch.input_ids.tolist()), "shares": shares_of(batch)}
    rest = {"filtered": batch.filtered.tolist(), "errors": batch.errors.to_pylist()}
    return {**result, "table": rows, "ids": batch.ids.tolist(), **sets, **rest}
