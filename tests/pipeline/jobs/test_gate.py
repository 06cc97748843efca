"""A gate: the first rows are computed alone, and the job goes on only if they are as expected."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.row_coverage import common_rows
from batchinference.pipeline.errors import GateFailed
from batchinference.pipeline.first_rows.gate import check_gate, type_problem
from batchinference.spec.gate import Gate
from batchinference.spec.report import Report
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.documents.parsed_write import write_of
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import rows_of

FILES = {"a": 7, "b": 0, "c": 20, "d": 13}
"""The number of rows of each file. The first 10 rows are those of a, and 3 of c."""
ROWS = sum(FILES.values())


def write_rows(directory: Path, kind: str) -> Path:
    directory.mkdir()
    numbers = iter(range(ROWS))
    for name, count in FILES.items():
        rows = [{"n": next(numbers)} for _ in range(count)]
        if kind == "json":
            (directory / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        else:
            table = pa.table({"n": pa.array([row["n"] for row in rows], pa.int64())})
            pq.write_table(table, directory / f"{name}.parquet")
    return directory


def job(source: Path, gate: Document | None, **fields: Any) -> Document:
    kind = "json" if list(source.glob("*.jsonl")) else "parquet"
    step = {"name": "count", "python": {"callable": "support.jobs.user_code:logged"}}
    step["python"]["callArgs"] = {"file": str(source.parent / "log")}
    base: Document = {
        "read": {"format": kind, "paths": [str(source)]},
        "steps": [step, {"name": "small", "addColumns": {"small": "n < 8"}}],
        "write": {"format": "parquet", "path": str(source.parent / "out")},
    }
    given = document("gated", **{**base, **fields})
    if gate is not None:
        given["spec"]["gate"] = gate
    return given


def computed(source: Path) -> list[int]:
    """Return the rows that the step has computed, in order."""
    return sorted(int(line) for line in (source.parent / "log").read_text().splitlines())


def numbers(source: Path) -> list[int]:
    return sorted(row["n"] for row in rows_of(source.parent / "out"))


def assert_complete(source: Path, report: Report) -> None:
    assert (report.reason, numbers(source)) == (None, list(range(ROWS)))
    assert set(Counter(computed(source)).values()) == {1}


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_only_the_first_rows_are_computed_if_they_are_not_as_expected(
    tmp_path: Path, kind: str
) -> None:
    source = write_rows(tmp_path / "in", kind)
    report = run_without_ray(job(source, {"rows": 10, "expect": "mean(small) > 0.9"}))
    assert report.reason == "GateFailed"
    assert "mean(small) is 0.8 in 10 rows" in str(report.message)
    assert computed(source) == list(range(10))


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_corrected_gate_resumes_with_the_rows(tmp_path: Path, kind: str) -> None:
    source = write_rows(tmp_path / "in", kind)
    run_without_ray(job(source, {"rows": 10, "expect": "mean(small) > 0.9"}))
    again = run_without_ray(job(source, {"rows": 10, "expect": "count(n >= 8) > 2"}))
    assert (again.reason, computed(source)) == ("GateFailed", list(range(10)))
    report = run_without_ray(job(source, {"rows": 10, "expect": "mean(small) > 0.7"}))
    assert_complete(source, report)
    assert report.notes[0] == "gate: mean(small) is 0.8 in 10 rows"


@pytest.mark.parametrize(
    "gate",
    [{"rows": 10}, {"percent": 25}, {"rows": 1000}, {"rows": ROWS}, {"rows": 7}, {"rows": 1}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_all_rows_are_computed_once_if_the_gate_passes(
    tmp_path: Path, kind: str, gate: Document
) -> None:
    source = write_rows(tmp_path / "in", kind)
    report = run_without_ray(job(source, {**gate, "expect": "min(n) == 0"}))
    assert_complete(source, report)
    rows = gate.get("rows", ROWS * gate.get("percent", 0) // 100)
    assert f"in {min(rows, ROWS)} row" in report.notes[0]


def steps_that_fail_from(n: int, source: Path) -> list[Document]:
    """Return the steps of `job`, and one that fails for later rows until a file `fixed` exists."""
    fails = {"name": "fail", "python": {"callable": "support.jobs.user_code:fails_from"}}
    fails["python"]["callArgs"] = {"n": n, "file": str(source.parent / "fixed")}
    return [*job(source, None)["spec"]["steps"], fails]


@pytest.mark.parametrize(
    ("changed", "notes"),
    [
        ({}, "gate: max(n) is 9 in 10 rows"),
        ({"expect": "min(n) == 0"}, "gate: max(n) is 9 in 10 rows; gate: min(n) is 0 in 10 rows"),
        ({"rows": 7}, "gate: max(n) is 9 in 10 rows; gate: max(n) is 6 in 7 rows"),
        (None, "gate: max(n) is 9 in 10 rows"),
    ],
)
def test_gate_that_has_passed_is_checked_again_only_if_it_has_changed(
    tmp_path: Path, changed: Document | None, notes: str
) -> None:
    source = write_rows(tmp_path / "in", "json")
    gate, steps = {"rows": 10, "expect": "max(n) < 10"}, steps_that_fail_from(30, source)
    first = run_without_ray(job(source, gate, steps=steps))
    assert first.reason == "Application"
    (tmp_path / "fixed").touch()
    again = None if changed is None else {**gate, **changed}
    report = run_without_ray(job(source, again, steps=steps))
    assert (report.reason, numbers(source)) == (None, list(range(ROWS)))
    assert report.notes[0] == notes


@pytest.mark.parametrize("rows", [10, 20])
def test_gate_that_was_tightened_stops_the_job_that_resumes(tmp_path: Path, rows: int) -> None:
    source = write_rows(tmp_path / "in", "json")
    gate, steps = {"rows": 10, "expect": "max(n) < 10"}, steps_that_fail_from(30, source)
    run_without_ray(job(source, gate, steps=steps))
    before = set(computed(source))
    (tmp_path / "fixed").touch()
    tight = {"rows": rows, "expect": "max(n) < 0"}
    for _ in range(2):  # the change is not accepted by running the job again
        report = run_without_ray(job(source, tight, steps=steps))
        assert report.reason == "GateFailed"
    assert set(computed(source)) == before | set(range(rows))


@pytest.mark.parametrize("write_format", ["json", "csv", "parquet"])
def test_gate_reads_each_format(tmp_path: Path, write_format: str) -> None:
    source = write_rows(tmp_path / "in", "json")
    write = {"format": write_format, "path": str(tmp_path / "out")}
    report = run_without_ray(
        job(source, {"rows": 10, "expect": "fraction(not small) > 0.5"}, write=write)
    )
    assert "fraction(not small) is 0.2 in 10 rows" in str(report.message)


def test_items_are_divided_too(tmp_path: Path) -> None:
    source = tmp_path / "in"
    read = {"format": "items", "items": [{"n": n} for n in range(20)]}
    read["options"] = {"overrideNumBlocks": 4}
    gate = {"rows": 7, "expect": "max(n) < 3"}
    report = run_without_ray(job(source, gate, read=read))
    assert (report.reason, computed(source)) == ("GateFailed", list(range(7)))


@pytest.mark.parametrize(
    ("expect", "values", "expected"),
    [
        ("mean(a) > 1", [1, None, 2], "mean(a) is 1.5 in 3 rows"),
        ("fraction(a is None) < 0.5", [1, None, 2], "fraction(a is None) is 0.3333 in 3 rows"),
        ("count(a > 1) == 1", [1, None, 2.5], "count(a > 1) is 1 in 3 rows"),
        ("max(len(a)) < 4 and min(a) == 'b'", ["b"], "max(len(a)) is 1, min(a) is b in 1 row"),
        ("mean(a.b) > 0", [{"b": 1}], "mean(a.b) is 1 in 1 row"),
        ("max(a) is None", [None], "max(a) is None in 1 row"),
    ],
)  # fmt: skip
def test_measures(expect: str, values: list[Any], expected: str) -> None:
    gate = check_gate(Gate(rows=1, expect=expect), [{"a": v} for v in values])
    assert gate == f"gate: {expected}"


@pytest.mark.parametrize(
    ("expect", "rows", "problem"),
    [
        ("mean(a) > 1", [], "mean(a) is None in 0 rows"),
        ("mean(a) > 1", [{"a": None}], "mean(a) is None in 1 row"),
        ("mean(a) > 1", [{"a": "x"}], "cannot be computed"),
        ("mean(a) > 1", [{"a": 3}, {"a": "x"}], "cannot be computed"),
        ("mean(a) > 1", [{"a": 3}, {"a": 1 << 63}], "too large for int64"),
    ],
)
def test_what_is_not_true_fails(expect: str, rows: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(GateFailed, match="gate") as failure:
        check_gate(Gate(rows=1, expect=expect), rows)
    assert problem in failure.value.message


VECTOR, PART = pa.list_(pa.float32()), pa.struct({"score": pa.float32()})
COLUMNS = pa.schema(
    {"text": pa.string(), "n": pa.int64(), "vector": VECTOR, "part": PART, "unknown": pa.null()}
)


@pytest.mark.parametrize(
    "expect",
    [
        *("mean(text) > 1", "mean(vector) > 1", "max(part) > 1"),
        *("count(n + 1) > 1", "mean(n) > 'x'", "max(text) > 1"),
    ],
)
def test_gate_that_can_never_be_computed_is_refused(expect: str, messages: Messages) -> None:
    gate = Gate(rows=1, expect=expect)
    for write in ("parquet", "json"):
        messages.check(type_problem(gate, write_of(write), COLUMNS))
    if "text" in expect:  # in CSV, the texts may be numbers
        assert not type_problem(gate, write_of("csv"), COLUMNS)


@pytest.mark.parametrize(
    "expect",
    [
        "mean(part.score) > 0.5 and max(text) > 'a' and count(text == 'a') > 0",
        "mean(unknown) > 1 and mean(other) > 'x'",
    ],
)
def test_gate_that_may_be_computed_is_accepted(expect: str) -> None:
    for write in ("parquet", "json", "csv"):
        assert not type_problem(Gate(rows=1, expect=expect), write_of(write), COLUMNS)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (None, {0: [(0, 5)], 2: [(0, 3)]}),
        ({}, {}),
        ({0: [(2, 3), (4, None)], 1: [(0, None)]}, {0: [(2, 3), (4, 5)]}),
        ({2: [(3, None)]}, {}),
        ({2: [(1, 2), (2, 9)]}, {2: [(1, 2), (2, 3)]}),
    ],
)
def test_common_rows(missing: Any, expected: Any) -> None:
    assert common_rows(missing, {0: [(0, 5)], 2: [(0, 3)]}) == expected
