"""The pages as HTML."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from batchinference.api.jobs_on_cluster import Workers
from batchinference.api.observation import Observation
from batchinference.pipeline.output.error_groups import ErrorGroup, key_of_row
from batchinference.spec.progress import Progress, RowsOverTime
from batchinference.ui.pages import (
    JobDetails,
    JobEntry,
    job_page,
    jobs_page,
    problem_page,
    row_page,
)
from support.documents.report_pages import Page, cut_on_a_phone

SCRIPT = '<script>alert("x")</script>\u202e'
TITLE = ("output", "./out")
NO_HISTORY = RowsOverTime(seconds=[], rows=[])


def running(rate: float | None = None, **fields: Any) -> Observation:
    return Observation(
        TITLE, "Running", Progress.of(50, 200, rate=rate), None, ended=False, **fields
    )


ENDED = Observation(TITLE, "complete", Progress.of(200, 200), None, ended=True)


def test_list_shows_progress_rate_and_remaining_time() -> None:
    page = jobs_page([JobEntry("0", "./out", running(rate=10.0))], "on this machine")
    for shown in ("./out", "running", "25 %", "50 of 200", "10.0", "15s", 'href="jobs/0"'):
        assert shown in page


def test_ended_job_has_its_name_duration_speed_end_and_cause() -> None:
    ended = Observation(
        TITLE, "unfinished", Progress.of(50, 200, rate=2.5), None, ended=True, failed=True,
        message="BadModel: no such model", name="breeds", took="1m20s",
        ended_at="2026-03-02T09:01:11Z",
    )  # fmt: skip
    entry = JobEntry("0", "./out", ended)
    for page in (jobs_page([entry], "jobs"), job_page(JobDetails(entry, NO_HISTORY))):
        assert cut_on_a_phone(page) == []
        for shown in ("breeds", "1m20s", "2.5 rows/s", "2026-03-02 09:01:11Z", "BadModel: no such"):
            assert shown in page
    assert "<title>breeds" in page


def test_failed_rows_lead_to_pages_with_their_values() -> None:
    entry = JobEntry("0", "./out", ENDED)
    record = {"id": "0:1", "path": "a.txt", "row": 1, "step": "own", "error": "ValueError: no",
              "values": '{"text": "bad"}', "traceback": "File own.py"}  # fmt: skip
    group = ErrorGroup("own", "ValueError: no", 1, [record])
    page_of_group = job_page(JobDetails(entry, NO_HISTORY, [group]))
    assert {"href": f"0/rows/{quote(key_of_row(record))}"} in Page(page_of_group).all("a")
    page = Page(row_page(entry, [record])).text()
    for html in (page_of_group, row_page(entry, [record]), jobs_page([entry], "jobs")):
        assert cut_on_a_phone(html) == []
    for shown in ("Row 1 of a.txt", "own", "ValueError: no", "text bad", "File own.py", "0:1"):
        assert shown in page


@pytest.mark.parametrize(("state", "live"), [(running(), True), (ENDED, False)])
def test_page_is_updated_until_all_jobs_have_ended(state: Observation, live: bool) -> None:
    entry = JobEntry("0", "./out", state)
    for page in (jobs_page([entry], "jobs"), job_page(JobDetails(entry, NO_HISTORY))):
        assert ("data-refresh" in page, "live.js" in page) == (live, live)


def test_page_has_a_chart_and_the_workers_of_a_running_job_and_its_last_runs_first() -> None:
    history = RowsOverTime(seconds=[0, 2, 4], rows=[0, 10, 50])
    state = running(workers=[Workers("cpu", 2, 2), Workers("embed", 1, 3)])
    page = job_page(JobDetails(JobEntry("0", "daily", state), history))
    assert "<svg" in page
    assert "cpu 2/2 ready, embed 1/3 ready" in page
    runs = [["run", "read"], ["start", "5"], ["resume", "7"]]
    ended = job_page(JobDetails(JobEntry("0", "./out", ENDED), history, runs=runs))
    assert ended.index("resume") < ended.index("start")
    assert not [shown for shown in ("<svg", "Workers") if shown in ended]


def test_all_values_are_escaped() -> None:
    state = running(
        message=SCRIPT, stage=SCRIPT, facts=[(SCRIPT, SCRIPT)], workers=[Workers(SCRIPT, 1, 1)]
    )
    entry = JobEntry("0", SCRIPT, state)
    record = dict.fromkeys(("id", "path", "row", "step", "error", "values", "traceback"), SCRIPT)
    group = ErrorGroup(SCRIPT, SCRIPT, 1, [record])
    pages = [
        jobs_page([entry], SCRIPT),
        job_page(JobDetails(entry, NO_HISTORY, [group], SCRIPT, runs=[["run"], [SCRIPT]])),
        row_page(entry, [record]),
        problem_page(SCRIPT, SCRIPT),
    ]
    for page in pages:
        assert "alert(" in page
        assert SCRIPT[:-1] not in page
        assert SCRIPT[-1] not in page, "control characters are removed"
