"""Checks the limits of a running job on failed rows, warnings and tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from batchinference.pipeline.errors import LimitExceeded, TooManyErrors
from batchinference.pipeline.input import RowCount
from batchinference.spec.cluster import Limits
from batchinference.spec.job import ErrorPolicy
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import WarningCount
from batchinference.text import counted

ESTIMATE_MARGIN, ESTIMATE_FROM = 1.5, 1000
"""An estimated number of rows is multiplied by ESTIMATE_MARGIN, because the input may have more
rows. An estimate ends a job only after ESTIMATE_FROM read rows."""


def check_errors(
    policy: ErrorPolicy,
    counts: Counts,
    total: RowCount | None,
    example: Callable[[], str],
    *,
    resumes: bool = False,
) -> None:
    """Raise TooManyErrors if more rows have failed than the policy allows. Percentages refer to the
    whole input, and are checked only if its number of rows is known or, after ESTIMATE_FROM read
    rows, estimated. `example` returns a description of one failed row. `resumes` says whether the
    next run keeps the rows of this run. It only changes the message."""
    if counts.failed == 0:
        return
    if (max_rows := policy.max_rows) is not None and counts.failed > max_rows:
        limit = f"errors.maxRows ({max_rows})"
    elif limit_text := _exceeded_percentage(policy.max_percent, counts.failed, counts, total):
        limit = f"errors.maxPercent ({limit_text})"
    elif not policy.tolerant:
        limit = "0, because spec.errors allows none"
    else:
        return
    message = f"{counted(counts.failed, 'row')} failed, limit: {limit}"
    if limits := _sufficient_limits(policy, counts, total):
        consequence = ": it resumes, and keeps the error records" if resumes else ""
        message += f". To allow them, set {limits}, and run the job again{consequence}"
    with suppress(Exception):  # storage that cannot be read must not replace the cause
        message += f". One of them: {example()}"
    raise TooManyErrors(message)


def _sufficient_limits(policy: ErrorPolicy, counts: Counts, total: RowCount | None) -> str:
    """Return limits that allow the failed rows so far, as text. Empty if more than half of the read
    rows have failed, because the job itself must be corrected."""
    if 2 * counts.failed > counts.read:
        return ""
    limits = []
    max_rows = 0 if policy.max_rows is None and policy.max_percent is None else policy.max_rows
    if max_rows is not None and counts.failed > max_rows:
        limits.append(f"errors.maxRows to at least {counts.failed}")
    if _exceeded_percentage(policy.max_percent, counts.failed, counts, total) and total:
        percent = math.ceil(10_000 * counts.failed / max(total.rows, counts.read)) / 100
        limits.append(f"errors.maxPercent to at least {percent:g}")
    return " and ".join(limits)


def check_warnings(
    policy: ErrorPolicy, warnings: Sequence[WarningCount], counts: Counts, total: RowCount | None
) -> None:
    """Raise TooManyErrors if a step, or the input files, have a warning more often than the policy
    allows for this warning. Percentages are checked as in `check_errors`."""
    for index, limits in enumerate(policy.warnings):
        matching = [warning for warning in warnings if warning.name == limits.name]
        largest = max(matching, key=lambda warning: warning.count, default=None)
        count = largest.count if largest else 0
        percentage = _exceeded_percentage(limits.max_percent, count, counts, total)
        if limits.max_rows is not None and count > limits.max_rows:
            limit = f"maxRows ({limits.max_rows})"
        elif percentage is not None:
            limit = f"maxPercent ({percentage})"
        else:
            continue
        raise TooManyErrors(
            f"{counted(count, limits.name.unit)} with the warning {limits.name.value}, limit: "
            f"errors.warnings[{index}].{limit}. {limits.name.message}. One of them: "
            f"{largest.example if largest else None}"
        )


def check_tokens(limits: Limits, counts: Counts) -> None:
    """Raise LimitExceeded if the models have used more tokens than `limits` allow."""
    if limits.tokens is not None and counts.tokens > limits.tokens:
        raise LimitExceeded(
            f"the job has used {counts.tokens_text}, and cluster.limits.tokens allows "
            f"{limits.tokens:,}; the written output is kept"
        )


def _exceeded_percentage(
    max_percent: float | None, count: int, counts: Counts, total: RowCount | None
) -> str | None:
    """Return the percentage limit as text if `count` rows exceed it, else None. An estimated number
    of rows is multiplied by ESTIMATE_MARGIN."""
    if max_percent is None or total is None:
        return None
    if total.estimated and counts.read < ESTIMATE_FROM:
        return None
    rows = max(total.rows, counts.read) if total.estimated else max(total.rows, 1)
    margin = ESTIMATE_MARGIN if total.estimated else 1
    if 100 * count <= max_percent * rows * margin:
        return None
    return f"{max_percent:g} % of {'about ' if total.estimated else ''}{rows} rows"
