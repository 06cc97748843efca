"""Several nights have appended to an output: one run retries the failed rows of all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from batchinference.pipeline import job
from batchinference.pipeline.commit import job_pass
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.errors import DeviceFailed, JobFailure
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Plan
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.calls import counted
from support.documents.minimal import Document
from support.jobs.on_ray import job_document, write_lines
from support.jobs.user_code import step_until
from support.jobs.without_ray import InProcessExecution, run_without_ray
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified


def night(directory: Path, *, retry: bool = False, **fields: str) -> Document:
    return job_document(
        "nightly", directory / "in", directory / "out", steps=[step_until(directory / "repaired")],
        write={"format": "parquet", "mode": "append", **fields},
        errors={"maxRows": 5, "retryFailedRows": retry},
    )  # fmt: skip


def add(directory: Path, name: str, *texts: str) -> None:
    write_lines(directory / "in", {f"{name}.txt": [f"{name} {text}" for text in texts]})


def counts(report: Report) -> tuple[int, int, int]:
    """Return the number of rows read, written and failed."""
    assert report.state == JobState.SUCCEEDED, report.message
    assert report.counts is not None
    return report.counts.read, report.counts.written, report.counts.failed


def texts(directory: Path) -> list[str]:
    assert verified(directory / "out").counts == {}
    return sorted(row["text"] for row in rows_of(directory / "out"))


def away(*_: object) -> None:
    raise OSError("no space")


@pytest.fixture(params=["append", "error"])
def two_nights(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the directory of an output of two runs: the first one with this mode, and one night
    after it. Each has one bad row. The bad row of the first run fails in retries as well."""
    add(tmp_path, "a", "1", "worst")
    assert counts(run_without_ray(night(tmp_path, mode=request.param))) == (2, 1, 1)
    add(tmp_path, "b", "1", "bad")
    assert counts(run_without_ray(night(tmp_path))) == (2, 1, 1)
    return tmp_path


def test_row_that_fails_again_does_not_block_later_appends(two_nights: Path) -> None:
    (two_nights / "repaired").touch()
    assert counts(run_without_ray(night(two_nights, retry=True))) == (4, 3, 1), "of both together"
    assert texts(two_nights) == ["a 1", "b 1", "b bad"]


def test_node_with_a_faulty_device_stays_out_for_the_next_outputs(
    two_nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[str, ...]] = []
    real = InProcessExecution.run

    def run(self: InProcessExecution) -> None:
        used.append(self._plan.faulty_nodes)
        if len(used) == 1:
            self.control.losses.append(DeviceFailed("the device is gone", "b"))
        else:
            real(self)

    def without_faulty(plan: Plan, losses: list[JobFailure]) -> Plan:
        return replace(plan, faulty_nodes=("b",)) if losses else plan

    monkeypatch.setattr(InProcessExecution, "run", run)
    monkeypatch.setattr(job, "without_faulty_nodes", without_faulty)
    (two_nights / "repaired").touch()
    add(two_nights, "c", "1")
    assert counts(run_without_ray(night(two_nights, retry=True))) == (5, 4, 1)
    assert used == [(), ("b",), ("b",), ("b",)]


def test_retry_reads_the_leases_of_other_nights_once(two_nights: Path) -> None:
    """Otherwise, the number of reads would grow with the square of the nights."""
    run_without_ray(night(two_nights, retry=True))  # its spec replaces those of the nights
    reads = []
    for name in "cde":
        add(two_nights, name, "bad")
        run_without_ray(night(two_nights))
        with counted(Location, "read") as calls:
            run_without_ray(night(two_nights, retry=True))
        reads.append(sum("job.json" in call.args[0].path for call in calls.call_args_list))
    assert reads[2] - reads[1] == reads[1] - reads[0]


def test_published_progress_never_decreases_and_ends_once(two_nights: Path) -> None:
    published: list[Report] = []
    (two_nights / "repaired").touch()
    add(two_nights, "c", "1", "2")
    last = run_without_ray(night(two_nights, retry=True), published.append)
    rows = [report.progress.rows for report in published if report.progress]
    assert rows == sorted(rows)
    assert Counter(report.state.ended for report in published)[True] == 1
    assert published[-1] == last
    assert last.progress is not None
    assert (last.progress.rows, last.progress.total, last.progress.percent) == (6, 6, 100)
    assert str(last.errors).endswith("errors"), "although the last night has none"


@pytest.mark.parametrize("mode", ["append", "error"])
def test_retry_without_failures_only_appends(tmp_path: Path, mode: str, messages: Messages) -> None:
    """With mode append, so that `errors.retryFailedRows` may stay set in the job of every night."""
    for name, new in {"a": 1, "b": 1, "c": 1}.items():
        add(tmp_path, name, "1")
        report = run_without_ray(night(tmp_path, retry=True, mode=mode))
        assert counts(report) == (new, new, 0)
    assert texts(tmp_path) == (["a 1", "b 1", "c 1"] if mode == "append" else ["a 1"])
    if mode == "append":
        report = run_without_ray(night(tmp_path, retry=True))
        messages.check(report.message)
        assert counts(report) == (3, 3, 0)
        assert (report.steps, report.progress and report.progress.rows_per_second) == ({}, None)


def test_interrupted_retry_with_new_files_reads_each_append_once(two_nights: Path) -> None:
    (two_nights / "repaired").touch()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Committer, "put", away)
        assert run_without_ray(night(two_nights, retry=True)).state == JobState.FAILED
    add(two_nights, "c", "1", "bad")
    run_without_ray(night(two_nights))
    assert counts(run_without_ray(night(two_nights, retry=True))) == (6, 5, 1)
    assert texts(two_nights) == ["a 1", "b 1", "b bad", "c 1", "c bad"]


def test_restarted_output_reads_no_files_of_other_appends(two_nights: Path) -> None:
    given = night(two_nights, retry=True)
    given["spec"]["errors"]["maxRows"] = 0
    assert run_without_ray(given).state == JobState.FAILED, "which leaves the first run unfinished"
    given = night(two_nights)
    given["spec"]["resume"] = False
    assert counts(run_without_ray(given)) == (2, 1, 1)
    assert texts(two_nights) == ["a 1", "b 1"]


def test_successful_report_has_no_reason_of_an_earlier_failure(two_nights: Path) -> None:
    state = two_nights / "out" / "_batchinference"
    location = max(state.rglob("report.json"), key=lambda file: "-0001" not in file.parent.name)
    report = Report.parse(location.read_bytes())
    failed = {"state": JobState.FAILED, "reason": "Application", "message": "no"}
    location.write_bytes(report.model_copy(update=failed).serialized())
    now = run_without_ray(night(two_nights))
    assert (now.state, now.reason) == (JobState.SUCCEEDED, None)


def test_restart_killed_early_reads_no_files_of_other_appends(two_nights: Path) -> None:
    given = night(two_nights, retry=True)
    given["spec"]["errors"]["maxRows"] = 0
    assert run_without_ray(given).state == JobState.FAILED
    given = night(two_nights)
    given["spec"]["resume"] = False
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_pass.JobPass, "begin", away)
        assert run_without_ray(given).state == JobState.FAILED
    begun = "append" if list(two_nights.glob("out/*/append-????????")) else "error"
    assert counts(run_without_ray(night(two_nights, mode=begun))) == (2, 1, 1)
    assert texts(two_nights) == ["a 1", "b 1"]
