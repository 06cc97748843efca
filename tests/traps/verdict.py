"""What a tool made of a case: right, refused, wrong or not supported."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from traps.case import Case, Expected, Outcome, Refused, Right, Row, found


class Verdict(StrEnum):
    RIGHT = "right"
    REFUSED = "refused"
    """No wrong row: the tool, or a failed row for each row that is missing, says why."""
    WRONG = "WRONG"
    """Rows are missing or have wrong values, and nothing says so."""
    NONE = "not supported"
    MISSING = "not installed"


@dataclass(frozen=True)
class Judged:
    verdict: Verdict
    detail: str = ""
    """The message of what was refused, or how the rows differ."""


def judge(case: Case, outcome: Outcome, directory: Path, *, ours: bool) -> Judged:
    """Compare what a tool did with what is right. `ours` says that it is BatchInference, which
    counts warnings and failed rows."""
    differences = [_difference(case, each, outcome, directory, ours=ours) for each in case.right]
    if "" in differences:
        return Judged(Verdict.RIGHT)
    if outcome.error:
        return Judged(Verdict.REFUSED, outcome.error)
    if outcome.failed and any(
        _accounted(case, each, outcome, directory) for each in case.right if isinstance(each, Right)
    ):
        return Judged(Verdict.REFUSED, outcome.failed[0])
    return Judged(Verdict.WRONG, differences[0])


def _difference(
    case: Case, expected: Expected, outcome: Outcome, directory: Path, *, ours: bool
) -> str:
    """Return how an outcome differs from what is right; empty if it does not."""
    if isinstance(expected, Refused):
        text = outcome.problems if expected.check_only else outcome.error
        named = bool(text) and (not ours or found(expected.says, text))
        return "" if named else f"not refused with {expected.says!r}: {text or list(outcome.rows)}"
    if outcome.error:
        return outcome.error
    if expected.holds is not None and not expected.holds(_viewed(case, outcome.rows)):
        return f"rows: {_viewed(case, outcome.rows)}"
    missing, wrong = _unequal(case, expected, outcome, directory, exact=ours)
    if expected.holds is None and (missing or wrong):
        return f"missing: {missing}, wrong: {wrong}"
    if len(outcome.failed) != expected.failed:
        return f"{len(outcome.failed)} failed rows, not {expected.failed}: {outcome.failed}"
    if silent := [each for each in outcome.failed if not found(expected.says, each)]:
        return f"the error does not name {expected.says!r}: {silent[0]}"
    if ours and dict(outcome.warnings) != dict(expected.warnings):
        return f"warnings: {dict(outcome.warnings)}, not {dict(expected.warnings)}"
    if not ours and expected.notice and not found(expected.notice, outcome.said):
        return f"says nothing about {expected.notice!r}"
    return ""


def _accounted(case: Case, expected: Right, outcome: Outcome, directory: Path) -> bool:
    """Return whether no row is wrong, and a failed row stands for each row that is missing."""
    if expected.holds is not None:
        return False
    missing, wrong = _unequal(case, expected, outcome, directory, exact=True)
    return not wrong and 0 < len(missing) <= len(outcome.failed) - expected.failed


def _unequal(
    case: Case, expected: Right, outcome: Outcome, directory: Path, *, exact: bool
) -> tuple[list[Row], list[Row]]:
    """Return the rows that are missing, and those that should not be there."""
    rows = expected.rows(directory) if callable(expected.rows) else expected.rows
    left = _viewed(case, outcome.rows)
    missing = []
    for row in rows:
        names = None if exact else row.keys()
        match = next((n for n, other in enumerate(left) if _same_row(row, other, case.near, names)), None)
        if match is None:
            missing.append(row)
        else:
            del left[match]
    return missing, left


def _viewed(case: Case, rows: Sequence[Row]) -> list[Row]:
    return [case.view(row) if case.view else row for row in rows]


def _same_row(row: Row, other: Row, near: float, names: Any) -> bool:
    """Return whether two rows are equal. With `names`, only these columns are compared, and other
    tools may give NaN for null."""
    if names is None:
        return row.keys() == other.keys() and all(same(row[n], other[n], near) for n in row)
    return all(name in other and same(row[name], _null(other[name]), near) for name in names)


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def same(one: Any, other: Any, near: float = 0.0) -> bool:
    """Return whether two nested values are equal. Numbers are equal across types; truth values and
    texts equal nothing else."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[n], other[n], near) for n in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            same(a, b, near) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or abs(one - other) <= near or (one != one and other != other)
    if isinstance(one, dt.datetime) and isinstance(other, dt.datetime):
        return (one.tzinfo is None) == (other.tzinfo is None) and one == other
    return bool(one == other)
