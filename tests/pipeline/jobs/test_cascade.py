"""A cascade learns from the first rows which rows need its expensive step."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.first_rows.cascade import learn_threshold, lower_bound, lowest_score
from batchinference.spec.expression import columns_read_by
from batchinference.spec.report import Report
from batchinference.spec.steps import Cascade
from support.documents.minimal import Document, document
from support.jobs.on_ray import write_lines
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of

ROWS, FIRST = 400, 200
CASCADE = {"score": "score", "agree": "cheap == costly", "precision": 0.95, "rows": FIRST}
COSTLY = "support.jobs.user_code:costly"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return rows of which the cheap result is right if its score is at least 0.3."""
    files: dict[str, list[str]] = {}
    for file in range(2):
        numbers = range(ROWS * file // 2, ROWS * (file + 1) // 2)
        rows = [{"n": n, "score": n * 37 % 100 / 100, "right": n % 2} for n in numbers]
        for row in rows:
            row["cheap"] = row["right"] if row["score"] >= 0.3 else 1 - row["right"]
        files[f"{file}.jsonl"] = list(map(json.dumps, rows))
    return write_lines(tmp_path / "in", files)


def job(source: Path, code: str = COSTLY, **fields: Any) -> Document:
    step = {"name": "costly", "cascade": CASCADE, "python": {"callable": code}}
    step["python"]["callArgs"] = {"file": str(source.parent / "log"), "n": 390}
    if code != COSTLY:
        step["replicas"] = {"max": 1}
    base = {
        "read": {"format": "json", "paths": [str(source)]},
        "steps": [step],
        "write": {"format": "parquet", "path": str(source.parent / "out")},
    }
    return document("cascade", **{**base, **fields})


def computed(source: Path) -> list[int]:
    return sorted(map(int, (source.parent / "log").read_text().split()))


def assert_cascaded(source: Path, report: Report) -> None:
    rows = sorted(rows_of(source.parent / "out"), key=lambda row: row["n"])
    expected = [n for n in range(ROWS) if n < FIRST or n * 37 % 100 < 30]
    assert computed(source) == expected
    assert [row["n"] for row in rows if row["costly"] is not None] == expected
    assert len(rows) == ROWS
    (warning,) = report.warnings
    assert (warning.name, warning.count) == ("Skipped", ROWS - len(expected))
    assert "score >= 0.3 is enough" in report.notes[0]
    assert "100.0 % in 68" in report.notes[0]


@pytest.mark.parametrize("code", [COSTLY, "support.jobs.user_code:Costly"])
def test_later_rows_with_a_high_score_are_skipped(source: Path, code: str) -> None:
    (source.parent / "fixed").touch()
    report = run_without_ray(job(source, code))
    assert report.reason is None
    assert_cascaded(source, report)


def test_resumed_job_uses_the_score_that_was_learned(source: Path) -> None:
    first = run_without_ray(job(source))
    assert first.reason == "Application"
    (source.parent / "fixed").touch()
    (source.parent / "log").write_text(" ".join(map(str, sorted({*computed(source)}))) + "\n")
    report = run_without_ray(job(source))
    rows = {row["n"]: row["costly"] for row in rows_of(source.parent / "out")}
    assert [n for n in range(FIRST, ROWS) if rows[n] is None] == [
        n for n in range(FIRST, ROWS) if n * 37 % 100 >= 30
    ]
    assert "score >= 0.3 is enough" in report.notes[0]


def test_gate_and_cascade_see_the_same_rows(source: Path) -> None:
    gate = {"rows": 60, "expect": "fraction(cheap == costly) > 0.9"}
    report = run_without_ray(job(source, gate=gate))
    assert report.reason == "GateFailed"
    assert "is 0.7 in 200 rows" in str(report.message)
    assert computed(source) == list(range(FIRST))


PAIRS = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.9]), st.booleans()), max_size=80)


@given(PAIRS)
def test_lowest_score_is_the_first_that_is_good_enough(pairs: list[tuple[float, bool]]) -> None:
    def bound(score: float) -> float:
        agree = [result for other, result in pairs if other >= score]
        return lower_bound(sum(agree), len(agree))

    good = [score for score in {score for score, _ in pairs} if bound(score) >= 0.6]
    assert lowest_score(pairs, 0.6) == min(good, default=None)


def test_lower_bound_is_that_of_wilson() -> None:
    bounds = [round(lower_bound(*of), 4) for of in ((0, 0), (0, 9), (9, 9), (95, 100), (950, 1000))]
    assert bounds == [0.0, 0.0, 0.7688, 0.9008, 0.9374]


def test_precision_holds_for_rows_that_were_not_seen() -> None:
    chance, missed = random.Random(7), 0
    for _ in range(40):
        rows = [{"s": score, "a": chance.random() < score} for score in
                (chance.random() for _ in range(2000))]  # fmt: skip
        cascade = Cascade(score="s", agree="a", precision=0.9)
        threshold, _ = learn_threshold("step", cascade, rows[:1000])
        agree = [row["a"] for row in rows[1000:] if threshold and row["s"] >= threshold]
        missed += bool(agree) and sum(agree) / len(agree) < 0.88
    assert missed <= 2


@pytest.mark.parametrize(
    ("rows", "threshold", "text"),
    [
        ([{"s": 1.0, "a": False}] * 100, None, "no score has a precision of 0.9"),
        ([{"s": None, "a": True}] * 100, None, "no score"),
        ([{"s": float("nan"), "a": True}] * 100, None, "no score"),
        ([{"s": 5, "a": True}] * 100, 5.0, "100.0 % in 50 rows that were held out. About 100 %"),
        ([{"s": 5, "a": None}] * 50, None, "no score"),
    ],
)
def test_what_is_learned(rows: list[dict[str, Any]], threshold: float | None, text: str) -> None:
    result = learn_threshold("step", Cascade(score="s", agree="a", precision=0.9), rows)
    assert result[0] == threshold
    assert text in result[1]


def test_order_of_the_rows_does_not_matter() -> None:
    chance = random.Random(1)
    rows = [{"s": chance.random(), "a": chance.random() < 0.95} for _ in range(300)]
    cascade = Cascade(score="s", agree="a", precision=0.9)
    assert learn_threshold("step", cascade, rows) == learn_threshold("step", cascade, rows[::-1])


def test_expressions_that_do_not_suit_the_rows_end_the_job() -> None:
    with pytest.raises(JobFailure, match="cascade cannot be computed"):
        learn_threshold("x", Cascade(score="s", agree="a", precision=0.9), [{"s": "x", "a": 1}])


def test_infinite_scores_have_a_threshold_that_is_a_number() -> None:
    cascade = Cascade(score="score", agree="cheap == costly", precision=0.9)
    rows = [{"score": float("inf"), "cheap": 1, "costly": 1}] * 200
    threshold, _ = learn_threshold("costly", cascade, rows)
    assert threshold is not None
    assert columns_read_by(cascade.condition(threshold)) == {"score"}
    none, _ = learn_threshold("costly", cascade, [{**row, "score": float("-inf")} for row in rows])
    assert none is None
