"""Each input of the corpus of `make traps` is read as its owner wrote it, or refused as the corpus
says, without Ray."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from traps.case import Case
from traps.cases import CASES, KINDS
from traps.product import outcome_of, without_ray
from traps.verdict import MAX_REFUSED, Judged, Verdict, judge


def judged(case: Case, directory: Path) -> Judged:
    case.write_input(directory)
    outcome = outcome_of(case, directory, without_ray)
    return judge(case, outcome, directory, ours=True)


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=pytest.mark.xdist_group(f"traps-{case.topic}"))
        for case in CASES.values()
    ],
)
def test_input_is_read_as_its_owner_wrote_it(case: Case, tmp_path: Path) -> None:
    found = judged(case, tmp_path / "case")
    expected = Verdict.REFUSED if case.refused else Verdict.RIGHT
    assert found.verdict == expected, f"{case.title}: {found.verdict}: {found.detail}"


def test_each_kind_has_a_case_and_three_variants() -> None:
    counts = Counter(case.kind for case in CASES.values())
    assert list(counts) == list(KINDS)
    assert min(counts.values()) >= 4


def test_few_inputs_are_refused() -> None:
    assert sum(bool(case.refused) for case in CASES.values()) <= MAX_REFUSED
