"""Reads warnings about rows as plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings
from batchinference.pipeline.runtimes import Runtime
from batchinference.spec.progress import TokenKind
from batchinference.spec.warnings import WarningName
from support.models.run_transformers import run

Found = list[tuple[int, str, int]]
"""The row, the name and the amount of each warning."""


def plain(warnings: Iterable[RowWarning]) -> Found:
    """Return warnings without numbers of tokens."""
    return sorted(
        (warning.row, warning.name.value, warning.amount)
        for warning in warnings
        if isinstance(warning.name, WarningName)
    )


def tokens_in(warnings: Iterable[RowWarning]) -> dict[str, dict[int, int]]:
    """Return the tokens that were counted: for each kind, the number of each row."""
    result: dict[str, dict[int, int]] = {}
    for row, kind, number in warnings:
        if isinstance(kind, TokenKind):
            of_kind = result.setdefault(kind.value, {})
            of_kind[row] = of_kind.get(row, 0) + number
    return result


def warnings_of(batch: RowBatch) -> Found:
    """Return the warnings of a batch without numbers of tokens, with the ids of input rows."""
    columns = (batch.warnings.column(name).to_pylist() for name in ("id", "name", "amount"))
    return [each for each in sorted(zip(*columns, strict=True)) if each[1] not in set(TokenKind)]


def run_with_warnings(runtime: Runtime, columns: dict[str, list[Any]]) -> tuple[list[Any], Found]:
    """Return the results of one batch as Python values, and its warnings."""
    with collect_warnings() as warnings:
        results = run(runtime, columns)
    return results, plain(warnings)
