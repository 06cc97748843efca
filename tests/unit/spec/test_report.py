"""The report of a driver: serialization and parsing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.progress import MAX_ROWS, Counts, Progress
from batchinference.spec.report import JobState, Report
from batchinference.text import in_one_line
from support.tiers import examples

SMALLEST: dict[str, Any] = {
    "name": "job",
    "state": "running",
    "output": "s3://out/",
    "startedAt": "2026-01-02T03:04:05Z",
    "updatedAt": "2026-01-02T03:05:05Z",
    "version": "0.1.0",
}
NONE = {"read": 0, "written": 0, "failed": 0, "filtered": 0}
TIME = "2026-01-02T03:04:05Z"
ROWS = st.integers(0, MAX_ROWS)
COUNTS = st.builds(Counts, read=ROWS, written=st.just(0), failed=ROWS, filtered=ROWS)
PROGRESS = st.builds(
    Progress,
    rows=ROWS,
    total=st.none() | ROWS,
    estimated=st.none() | st.booleans(),
    percent=st.none() | st.integers(0, 100),
    rowsPerSecond=st.none() | st.floats(0, 1e9),
    eta=st.none() | st.text(max_size=32).map(in_one_line),
)
TEXT = st.text().map(in_one_line)
REPORTS = st.builds(
    Report,
    name=TEXT,
    state=st.sampled_from(JobState),
    reason=st.none() | TEXT,
    message=st.none() | TEXT,
    progress=st.none() | PROGRESS,
    counts=st.none() | COUNTS,
    output=TEXT,
    errors=st.none() | TEXT,
    passNumber=st.none() | st.integers(1),
    startedAt=st.just(TIME),
    updatedAt=st.just(TIME),
    seconds=st.dictionaries(TEXT, st.floats(0, 1e9)),
    version=TEXT,
)


def test_report_is_json_with_camel_case_names() -> None:
    report = Report(
        name="job",
        state=JobState.FAILED,
        reason="TooManyErrors",
        progress=Progress(rows=7, total=10, percent=70, rowsPerSecond=1.5, eta="2s"),
        counts=Counts(read=7, written=5, failed=2, filtered=0),
        output="s3://out/",
        startedAt=TIME,
        updatedAt=TIME,
        seconds={"running": 4.5},
        version="0.1.0",
    )
    text = report.serialized().decode()
    assert text.endswith("}\n")
    assert json.loads(text) == {
        "name": "job",
        "state": "failed",
        "reason": "TooManyErrors",
        "progress": {"rows": 7, "total": 10, "percent": 70, "rowsPerSecond": 1.5, "eta": "2s"},
        "counts": {"read": 7, "written": 5, "failed": 2, "filtered": 0, "warned": 0},
        "output": "s3://out/",
        "startedAt": TIME,
        "updatedAt": TIME,
        "seconds": {"running": 4.5},
        "batchSizes": {},
        "replicasPerDevice": {},
        "steps": {},
        "retries": 0,
        "versions": {},
        "notes": [],
        "warnings": [],
        "faultyNodes": [],
        "version": "0.1.0",
    }


@given(REPORTS)
@settings(max_examples=examples(200), deadline=None)
def test_report_survives_a_round_trip(report: Report) -> None:
    assert Report.parse(report.serialized()) == report
    assert Report.parse(report.serialized().decode()) == report


def test_job_states_and_which_of_them_have_ended() -> None:
    assert [(state.value, state.ended) for state in JobState] == [
        ("preparing", False),
        ("running", False),
        ("finalizing", False),
        ("succeeded", True),
        ("failed", True),
    ]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"null", b"[]", b"{}", b"not json", b'{"name": "job"', b"\xff\xfe\x00"),
        b"[" * 10_000,
        json.dumps({**SMALLEST, "state": "sleeping"}),
        json.dumps({**SMALLEST, "counts": {"read": -1, "written": 0, "failed": 0, "filtered": 0}}),
        json.dumps({**SMALLEST, "progress": {"rows": 1, "percent": 101}}),
        json.dumps({**SMALLEST, "progress": {"rows": 1.5}}),
        json.dumps({**SMALLEST, "version": None}),
        json.dumps({key: SMALLEST[key] for key in SMALLEST if key != "updatedAt"}),
        *(json.dumps({**SMALLEST, key: "2026-01-02"}) for key in ("startedAt", "updatedAt")),
        json.dumps({**SMALLEST, "progress": {"rows": MAX_ROWS + 1}}),
        json.dumps({**SMALLEST, "progress": {"rows": 1, "total": MAX_ROWS + 1}}),
        json.dumps({**SMALLEST, "counts": {**NONE, "written": MAX_ROWS + 1}}),
        json.dumps({**SMALLEST, "progress": {"rows": 1, "rowsPerSecond": math.inf}}),
        json.dumps({**SMALLEST, "progress": {"rows": 1, "rowsPerSecond": math.nan}}),
        json.dumps({**SMALLEST, "progress": {"rows": 1, "eta": "9" * 33}}),
        json.dumps({**SMALLEST, "output": "s3://" + "x" * 8192}),
    ],
    ids=lambda content: str(content[:25]),
)
def test_report_is_refused_with_value_error(content: bytes | str) -> None:
    with pytest.raises(ValueError, match="Report"):
        Report.parse(content)


def test_report_fields_of_a_newer_driver_are_ignored() -> None:
    progress = {"rows": 1, "bytes": 5}
    report = Report.parse(json.dumps({**SMALLEST, "progress": progress, "deviceSeconds": 3}))
    assert report.progress is not None
    assert report.progress.rows == 1


@given(st.binary() | st.text())
@settings(max_examples=examples(300), deadline=None)
def test_report_of_random_content_raises_only_value_error(content: bytes | str) -> None:
    with pytest.raises(ValueError, match="Report"):
        Report.parse(content)


SAFE = "[2Jab c31md e"


def test_texts_of_a_report_are_safe_to_show() -> None:
    hostile = "\x1b[2Ja\x00b\r\n  c\x9b31m\u202ed\u2028e"
    progress = {"rows": 1, "eta": hostile[:20]}
    fields: dict[str, Any] = dict.fromkeys(("message", "reason", "stage", "output"), hostile)
    fields |= {"errors": hostile, "notes": [hostile], "batchSizes": {hostile: 1}}
    times = {"rows": 1, "seconds": 1, "rowsPerSecond": 1}
    fields |= {"steps": {hostile: times}, "seconds": {hostile: 1}, "progress": progress}
    report = Report.parse(json.dumps({**SMALLEST, **fields}))
    fields = json.loads(report.serialized())
    assert {fields[name] for name in ("message", "reason", "stage", "output", "errors")} == {SAFE}
    lists = [*fields["steps"], *fields["seconds"], *fields["batchSizes"], *fields["notes"]]
    assert {fields["progress"]["eta"], *lists} == {SAFE}
