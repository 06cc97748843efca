"""The number of failed rows that a job allows."""

from __future__ import annotations

from collections.abc import Callable

from batchinference.pipeline.commit.manifest_entry import RowCounts
from batchinference.pipeline.errors import TooManyErrors
from batchinference.pipeline.input.planning import RowCount
from batchinference.spec.error_policy import ErrorPolicy

ESTIMATE_MARGIN, ESTIMATE_FROM = 1.5, 1000
"""How far an estimate of the input's rows is trusted: the rows may be so many times as many, and so
many must have been done before a job is ended by it."""


def check_errors(
    policy: ErrorPolicy, counts: RowCounts, total: RowCount | None, example: Callable[[], str]
) -> None:
    """Raise TooManyErrors once more rows are bad than the policy allows.

    A percentage is of the whole input: it is judged early only as far as that is known. `example`
    tells of one bad row.
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
    """In words, the limit in percent, if more rows are bad. Where the rows of the input are an
    estimate, there may be many more of them."""
    if policy.max_percent is None or total is None:
        return None
    if total.estimated and counts.read < ESTIMATE_FROM:
        return None
    rows = max(total.rows, counts.read) if total.estimated else max(total.rows, 1)
    margin = ESTIMATE_MARGIN if total.estimated else 1
    if 100 * counts.failed <= policy.max_percent * rows * margin:
        return None
    return f"{policy.max_percent:g} % of {'about ' if total.estimated else ''}{rows} rows"
