"""Each input of the corpus of `make traps` is read as its owner wrote it, or refused as the corpus
says, without Ray. The verdict is computed from rows, errors and warnings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from traps.case import Case, Outcome, Refused, Right
from traps.cases import CASES, KINDS
from traps.product import outcome_of, without_ray
from traps.table import BEGIN, END, section, with_section
from traps.verdict import MAX_REFUSED, Judged, Verdict, judge


def judged(case: Case, directory: Path) -> Judged:
    case.write_input(directory)
    return judge(case, outcome_of(case, directory, without_ray), directory, ours=True)


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=pytest.mark.xdist_group(f"traps-{case.topic}"))
        for case in CASES.values()
    ],
)
def test_input_is_read_as_its_owner_wrote_it(case: Case, tmp_path: Path) -> None:
    result = judged(case, tmp_path / "case")
    expected = Verdict.REFUSED if case.refused else Verdict.RIGHT
    assert result.verdict == expected, f"{case.title}: {result.verdict}: {result.detail}"


def test_each_kind_has_a_case_and_three_variants() -> None:
    counts = Counter(case.kind for case in CASES.values())
    assert list(counts) == list(KINDS)
    assert min(counts.values()) >= 4


def test_few_inputs_are_refused() -> None:
    assert sum(bool(case.refused) for case in CASES.values()) <= MAX_REFUSED


ROWS = [{"id": "007", "v": 1}, {"id": "008", "v": None}]


def verdict_of(outcome: Outcome, *right: Any, ours: bool = True, **fields: Any) -> Verdict:
    case = Case("R00.a", "a case", right, **fields)
    return judge(case, outcome, Path(), ours=ours).verdict


def test_all_rows_in_any_order_are_right() -> None:
    assert verdict_of(Outcome(ROWS[::-1]), Right(ROWS)) == Verdict.RIGHT


WRONG = {
    "a row is missing": Outcome(ROWS[:1]),
    "a row is there twice": Outcome([*ROWS, ROWS[0]]),
    "a text is a number": Outcome([{"id": 7, "v": 1}, ROWS[1]]),
    "a truth value is a number": Outcome([{"id": "007", "v": True}, ROWS[1]]),
    "a column is missing": Outcome([{"id": "007"}, ROWS[1]]),
    "a warning is missing": Outcome(ROWS, warnings={}),
    "there is another warning": Outcome(ROWS, warnings={"TextCut": 1, "Rotated": 1}),
    "a failed row does not stand for all missing rows": Outcome([], failed=["v: bad (1)"]),
}


@pytest.mark.parametrize("outcome", WRONG.values(), ids=list(WRONG))
def test_difference_that_nothing_says_is_wrong(outcome: Outcome) -> None:
    assert verdict_of(outcome, Right(ROWS, warnings={"TextCut": 1})) == Verdict.WRONG


def test_failed_row_for_each_missing_row_is_refused() -> None:
    outcome = Outcome(ROWS[:1], failed=["v: bad (None)"])
    assert verdict_of(outcome, Right(ROWS)) == Verdict.REFUSED
    assert verdict_of(outcome, Right(ROWS), Right(ROWS[:1], failed=1, says="bad")) == Verdict.RIGHT
    assert verdict_of(outcome, Right(ROWS[:1], failed=1, says="worse")) == Verdict.WRONG


def test_refusal_is_right_if_it_is_expected_and_names_the_problem() -> None:
    outcome = Outcome(error="BadInput: in is a Delta table")
    assert verdict_of(outcome, Refused("delta")) == Verdict.RIGHT
    assert verdict_of(outcome, Refused("iceberg")) == Verdict.REFUSED
    assert verdict_of(outcome, Right(ROWS)) == Verdict.REFUSED
    assert verdict_of(Outcome(ROWS), Refused("delta")) == Verdict.WRONG


def test_problem_of_a_check_is_a_refusal_only_where_this_suffices() -> None:
    outcome = Outcome(ROWS, problems="delimiter: looks like ;")
    assert verdict_of(outcome, Refused("delimiter", check_only=True)) == Verdict.RIGHT
    assert verdict_of(outcome, Refused("delimiter")) == Verdict.WRONG
    assert verdict_of(outcome, Right(ROWS)) == Verdict.WRONG  # a false alarm


def test_other_tools_need_no_warning_but_may_have_to_say_something() -> None:
    counted = Right(ROWS, warnings={"TextCut": 1})
    assert verdict_of(Outcome(ROWS), counted, ours=False) == Verdict.RIGHT
    told = Right(ROWS, warnings={"TextCut": 1}, notice="longer than")
    assert verdict_of(Outcome(ROWS), told, ours=False) == Verdict.WRONG
    assert verdict_of(Outcome(ROWS, said="(102) longer than 32"), told, ours=False) == Verdict.RIGHT


def test_other_tools_may_have_more_columns_and_nan_for_null() -> None:
    rows = [{"id": "008", "v": float("nan"), "__url__": "x"}, {"id": "007", "v": 1.0}]
    assert verdict_of(Outcome(rows), Right(ROWS), ours=False) == Verdict.RIGHT
    assert verdict_of(Outcome(rows), Right(ROWS)) == Verdict.WRONG


def test_numbers_are_compared_exactly_unless_the_case_has_a_tolerance() -> None:
    off = Outcome([{"v": [1.0, 2.25]}])
    assert verdict_of(off, Right([{"v": [1, 2]}])) == Verdict.WRONG
    assert verdict_of(off, Right([{"v": [1, 2]}]), near=0.5) == Verdict.RIGHT
    large = Outcome([{"v": float(2**53)}])
    assert verdict_of(large, Right([{"v": 2**53 + 1}])) == Verdict.WRONG


def test_table_replaces_the_earlier_one() -> None:
    results = {"A tool": dict.fromkeys(CASES, Judged(Verdict.WRONG))}
    page = with_section(f"before\n{BEGIN}\nearlier\n{END}\nafter\n", results)
    assert page == f"before\n{section(results)}\nafter\n"
    assert "earlier" not in page
    assert f"{len(CASES)} **wrong**" in page
