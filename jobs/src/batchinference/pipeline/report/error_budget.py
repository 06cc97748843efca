"""Checks the limit of failed rows of a job."""

from __future__ import annotations

from collections.abc import Callable

from batchinference.pipeline.commit.manifest import RowCounts
from batchinference.pipeline.errors import TooManyErrors
from batchinference.pipeline.input.planning import RowCount
from batchinference.spec.error_policy import ErrorPolicy

ESTIMATE_MARGIN, ESTIMATE_FROM = 1.5, 1000
"""How far an estimated row count is trusted. The input may have ESTIMATE_MARGIN times as many rows.
An estimate can end a job only after ESTIMATE_FROM rows have been read."""


def check_errors(
    policy: ErrorPolicy, counts: RowCounts, total: RowCount | None, example: Callable[[], str]
) -> None:
    """Raise TooManyErrors if more rows have failed than the policy allows.

    A percentage refers to the whole input. It is checked while the job runs only as far as the
    number of rows is known. `example` returns a description of one failed row.
    """
    if counts.failed == 0:
        return
    if (most := policy.max_rows) is not None and counts.failed > most:
        limit = f"errors.maxRows ({most})"
    elif (passed := _percentage_passed(policy, counts, total)) is not None:
        limit = f"errors.maxPercent ({passed})"
    elif not policy.tolerant:
        limit = "none is allowed unless spec.errors says so"
    else:
        return
    raise TooManyErrors(f"{counts.failed} row(s) failed, limit: {limit}. One of them: {example()}")


def _percentage_passed(
    policy: ErrorPolicy, counts: RowCounts, total: RowCount | None
) -> str | None:
    """Return the exceeded percentage limit as text; None if it is not exceeded.

    If the row count is an estimate, the input may have many more rows."""
    if policy.max_percent is None or total is None:
        return None
    if total.estimated and counts.read < ESTIMATE_FROM:
        return None
    rows = max(total.rows, counts.read) if total.estimated else max(total.rows, 1)
    margin = ESTIMATE_MARGIN if total.estimated else 1
    if 100 * counts.failed <= policy.max_percent * rows * margin:
        return None
    return f"{policy.max_percent:g} % of {'about ' if total.estimated else ''}{rows} rows"
