"""Collects the warnings and token counts that decoders and models report about single rows.

Code that changes a value calls `warn`. Code further up the call stack, which processes the row,
collects the warnings. Without a collector, they are dropped:

    with collect_warnings() as warnings:
        picture = images.decode(content, options)   # calls warn(WarningName.ROTATED)
    # warnings == [RowWarning(0, WarningName.ROTATED, 0)]

Token counts are passed on like warnings. Their name is a TokenKind, and their amount the count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from batchinference.spec.progress import TokenKind
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.warnings import WarningName

ROW_WARNINGS = pa.schema(
    [("id", pa.int64()), ("step", pa.string()), ("name", pa.string()), ("amount", pa.int64())]
)
"""The columns of the warnings of a batch. `id` is the ID of the input row."""
NO_WARNINGS = pa.Table.from_batches([], ROW_WARNINGS)  # empty_table would import pandas
WARNING_COLUMN = OWN_PREFIX + "warnings"
WARNING_LIST = pa.list_(pa.struct([("name", pa.string()), ("amount", pa.int64())]))


class RowWarning(NamedTuple):
    """A warning about one row, or the number of tokens of one kind that a model has used for it.
    `row` is the row index in the current batch (0 for a single row). `amount` is a number that is
    added up, such as the number of cut or used tokens."""

    row: int
    name: WarningName | TokenKind
    amount: int


class WarnedRow(ValueError):
    """The error of a row that fails because `errors.warnings` does not accept its warning."""

    def __init__(self, name: WarningName, amount: int) -> None:
        added = f" ({amount} {name.amount})" if name.amount and amount else ""
        super().__init__(
            f"{name.value}: {name.meaning}{added}, and errors.warnings makes such rows failed "
            f"rows. {name.fix}"
        )


_collected: ContextVar[list[RowWarning] | None] = ContextVar("warnings", default=None)


def warn(name: WarningName | TokenKind, *, row: int = 0, amount: int = 0) -> None:
    """Report a warning about a row of the current batch."""
    if (warnings := _collected.get()) is not None:
        warnings.append(RowWarning(row, name, amount))


def count_tokens(
    row: int = 0, *, read: int | None, cached: int | None = None, made: int | None = None
) -> None:
    """Report the tokens of a row: input tokens, cached input tokens and output tokens. Unknown
    numbers are None. If rows are computed together, report their tokens for one of them."""
    kinds = {TokenKind.INPUT: read, TokenKind.CACHED: cached, TokenKind.OUTPUT: made}
    for kind, number in kinds.items():
        if number is not None:
            warn(kind, row=row, amount=number)


@contextmanager
def collect_warnings() -> Iterator[list[RowWarning]]:
    """Yield a list to which `warn` adds warnings during the block. In a nested block, it adds them
    only to the list of the nested block."""
    warnings: list[RowWarning] = []
    token = _collected.set(warnings)
    try:
        yield warnings
    finally:
        _collected.reset(token)


@contextmanager
def warnings_of_row(row: int) -> Iterator[None]:
    """Report the warnings of the block as warnings about this row, if the block raises no error."""
    with collect_warnings() as warnings:
        yield
    for warning in warnings:
        warn(warning.name, row=row, amount=warning.amount)


def errors_of(warnings: Iterable[RowWarning], failing: Collection[str]) -> dict[int, Exception]:
    """Return the error of each row that has a warning with a name in `failing`, by row index."""
    errors: dict[int, Exception] = {}
    for warning in warnings if failing else ():
        if isinstance(warning.name, WarningName) and warning.name in failing:
            errors.setdefault(warning.row, WarnedRow(warning.name, warning.amount))
    return errors


def warning_table(step: str, ids: np.ndarray, warnings: Sequence[RowWarning]) -> pa.Table:
    """Return the warnings of a step as a table with the columns of ROW_WARNINGS. `ids` are the
    input row IDs of the batch (int64)."""
    columns = [
        pa.array(ids[[warning.row for warning in warnings]]),
        pa.repeat(step, len(warnings)),
        pa.array([warning.name.value for warning in warnings], pa.string()),
        pa.array([warning.amount for warning in warnings], pa.int64()),
    ]
    return pa.table(columns, schema=ROW_WARNINGS)


def with_warnings(table: pa.Table, by_row: Mapping[int, Iterable[RowWarning]]) -> pa.Table:
    """Return the table with the warnings in a hidden last column; unchanged without warnings.
    `by_row` has the warnings by row index."""
    if not any(by_row.values()):
        return table
    lists = [
        [(warning.name.value, warning.amount) for warning in by_row.get(row, ())] or None
        for row in range(table.num_rows)
    ]
    return table.append_column(WARNING_COLUMN, pa.array(lists, WARNING_LIST))


def split_warnings(table: pa.Table) -> tuple[pa.Table, list[RowWarning]]:
    """Return the table without the hidden column of `with_warnings`, and the warnings."""
    if WARNING_COLUMN not in table.column_names:
        return table, []
    warnings = [
        RowWarning(row, WarningName.from_name(item["name"]), item["amount"])
        for row, items in enumerate(table.column(WARNING_COLUMN).to_pylist())
        for item in items or ()
    ]
    return table.drop_columns([WARNING_COLUMN]), warnings
