"""What a tool made of a case: right, refused, wrong or not supported."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

from traps.case import Case, Expected, Outcome, Refused, Right, Row, text_matches

MAX_REFUSED = 3
"""The number of cases that BatchInference may refuse although their input could be read."""


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
        named = bool(text) and (not ours or text_matches(expected.says, text))
        return (
            "" if named else f"not refused with {expected.says!r}: {text or _shown(outcome.rows)}"
        )
    if outcome.error:
        return outcome.error
    return _difference_of_rows(case, expected, outcome, directory, exact=ours) or (
        _difference_of_counts(expected, outcome)
        if ours
        else _difference_of_notice(expected, outcome)
    )


def _difference_of_rows(
    case: Case, expected: Right, outcome: Outcome, directory: Path, *, exact: bool
) -> str:
    if expected.holds is not None:
        rows = _viewed(case, outcome.rows)
        return "" if _holds(expected.holds, rows) else f"rows: {_shown(rows)}"
    missing, wrong = _unequal(case, expected, outcome, directory, exact=exact)
    return f"missing: {_shown(missing)}; wrong: {_shown(wrong)}" if missing or wrong else ""


def _difference_of_counts(expected: Right, outcome: Outcome) -> str:
    """Return how the failed rows and warnings of BatchInference differ."""
    if len(outcome.failed) != expected.failed:
        return f"{len(outcome.failed)} failed rows, not {expected.failed}: {outcome.failed}"
    if silent := [each for each in outcome.failed if not text_matches(expected.says, each)]:
        return f"the error does not name {expected.says!r}: {silent[0]}"
    if dict(outcome.warnings) != dict(expected.warnings):
        return f"warnings: {dict(outcome.warnings)}, not {dict(expected.warnings)}"
    if outcome.problems and not expected.failed:
        return f"validate --deep refuses it: {outcome.problems}"
    return ""


def _difference_of_notice(expected: Right, outcome: Outcome) -> str:
    """Return what another tool does not say about rows that it lacks or has changed."""
    if expected.failed:
        return "says nothing about the rows that are missing"
    if expected.notice and not text_matches(expected.notice, outcome.said):
        return f"says nothing about {expected.notice!r}"
    return ""


def _holds(condition: Callable[[Sequence[Row]], bool], rows: Sequence[Row]) -> bool:
    try:
        return condition(rows)
    except (KeyError, IndexError, TypeError):  # a column or its type is another
        return False


def _shown(rows: Sequence[Row]) -> str:
    return f"{len(rows)} rows, such as {rows[0]}" if rows else "none"


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
    if not exact:
        names = {name for row in rows for name in row}
        rows = [_some(row, names) for row in rows]
        left = [_some(row, names) for row in left]
    return (_differ_nearly if case.near else _differ)(rows, left, case.near)


def _some(row: Row, names: Collection[str]) -> Row:
    """Return the named values of a row. Other tools give null or NaN for a missing value."""
    return {name: _null(row.get(name)) for name in names if _null(row.get(name)) is not None}


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _differ(rows: Sequence[Row], left: Sequence[Row], near: float) -> tuple[list[Row], list[Row]]:
    expected, given = Counter(map(_key, rows)), Counter(map(_key, left))
    texts = {_key(row): row for row in (*rows, *left)}
    missing, wrong = expected - given, given - expected
    return [texts[key] for key in missing.elements()], [texts[key] for key in wrong.elements()]


def _key(value: Any) -> Hashable:
    """Return a nested value as one that can be counted. Numbers are equal across types."""
    if isinstance(value, dict):
        return frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if hasattr(value, "tolist"):
        return _key(value.tolist())
    if isinstance(value, dt.datetime):
        return ("time", value.tzinfo is None, value)
    if isinstance(value, dt.timedelta):  # that of pandas is another class
        return ("duration", value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return ("number" if number else type(value).__name__, value)


def _differ_nearly(
    rows: Sequence[Row], left: list[Row], near: float
) -> tuple[list[Row], list[Row]]:
    missing = []
    for row in rows:
        match = next((n for n, other in enumerate(left) if same(row, other, near)), None)
        if match is None:
            missing.append(row)
        else:
            del left[match]
    return missing, left


def _viewed(case: Case, rows: Sequence[Row]) -> list[Row]:
    return [case.view(row) if case.view else row for row in rows]


def same(one: Any, other: Any, near: float) -> bool:
    """Return whether two nested values are equal, with this tolerance for numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[n], other[n], near) for n in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(
            same(a, b, near) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, int | float) and isinstance(other, int | float):
        return _key(one) == _key(other) or abs(one - other) <= near
    return _key(one) == _key(other)
