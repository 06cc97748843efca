"""The reports that a job publishes while it runs, and the report that it leaves at its output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from batchinference import __version__
from batchinference.pipeline import job as job_module
from batchinference.pipeline.commit.manifest import Manifest, parse_manifest_name
from batchinference.pipeline.execution.stop_signals import run_monitored
from batchinference.pipeline.storage.location import Location
from batchinference.spec.report import JobState, Report
from support.calls import counted
from support.documents.minimal import Document
from support.jobs.on_ray import Run, errors_of, job_document, run_in_process, run_job, write_lines
from support.jobs.without_ray import run_without_ray, small_job, write_input
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("own_code")

STEPS = [
    {"name": "few", "filter": "not endswith(text, '9')"},
    {"name": "slow", "python": {"callable": "own_code:sleep_for_rows"}},
    {"name": "busy", "python": {"callable": "own_code:burn_cpu", "callArgs": {"seconds": 0.02}}},
    {"name": "own", "python": {"callable": "own_code:refuse_bad"}},
]
ORDER = [JobState.PREPARING, JobState.RUNNING, JobState.FINALIZING, JobState.SUCCEEDED]


@pytest.fixture(scope="module")
def often() -> Iterator[None]:
    """Poll every 0.1 seconds, so that a short job publishes many reports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "run_monitored", partial(run_monitored, poll_seconds=0.1))
        yield


def slow_job(directory: Path) -> Document:
    files = {f"{n}.txt": [f"text {m}" for m in range(20)] for n in range(5)}
    files["1.txt"][3] = "bad row"
    source = write_lines(directory / "in", files)
    return job_document("slow", source, directory / "out", steps=STEPS, errors={"maxRows": 1})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slow")


@pytest.fixture(scope="module")
def run(one_ray: None, often: None, directory: Path) -> Run:
    """Run a job of 100 rows, which takes a few seconds."""
    return run_job(slow_job(directory))


def test_states_are_ordered_and_progress_never_decreases(run: Run) -> None:
    states = [report.state for report in run.published]
    assert states == sorted(states, key=ORDER.index)
    assert set(states) == set(ORDER)

    shown = [report.progress for report in run.published if report.progress]
    assert len({progress.rows for progress in shown}) > 3
    for before, after in pairwise(shown):
        assert before.rows <= after.rows
        assert (before.percent or 0) <= (after.percent or 0)
    assert (shown[-1].rows, shown[-1].total, shown[-1].percent) == (100, 100, 100)
    assert shown[-1].eta == "0s"


def test_counts_match_the_output(run: Run, directory: Path) -> None:
    output = directory / "out"
    assert run.counts == (100, len(rows_of(output)), len(errors_of(output)), 10)
    assert run.counts == (100, 89, 1, 10)


def test_stored_report_is_the_returned_one(run: Run, directory: Path) -> None:
    kept = (directory / "out" / "_batchinference" / "report.json").read_bytes()
    assert Report.parse(kept) == run.report == run.published[-1]


def test_report_identifies_the_job(run: Run, directory: Path) -> None:
    report = run.report
    assert (report.name, report.pass_number, report.version) == ("slow", 1, __version__)
    assert report.output == str(directory / "out")
    assert report.started_at <= report.updated_at
    assert list(report.seconds) == ["preparing", "running", "finalizing"]
    assert report.seconds["running"] > 1
    assert report.progress is not None
    assert report.progress.rows_per_second is not None


def test_memory_covers_all_worker_processes(run: Run, directory: Path) -> None:
    files = (directory / "out" / "_batchinference" / "attempts").rglob("0*.json")
    notes = [note for file in files for note in Manifest.parse(file.read_bytes()).notes]
    assert notes
    assert run.report.memory is not None
    peaks = [json.loads(text).get("peak_bytes", 0) for _, text in notes]
    assert run.report.memory.peak_worker_bytes == max(peaks)


def test_time_of_each_step_is_reported(run: Run) -> None:
    rows = {name: step.rows for name, step in run.report.steps.items()}
    assert rows == {"read": 100, "few": 100, "slow": 90, "busy": 90, "own": 90, "write": 89}
    assert list(rows) == ["read", "few", "slow", "busy", "own", "write"]
    for step in run.report.steps.values():
        assert step.rows / step.rows_per_second == pytest.approx(step.seconds, rel=0.01, abs=0.001)


@pytest.mark.parametrize("max_rows", [10, 1], ids=["succeeds", "fails"])
def test_manifests_are_fetched_once(tmp_path: Path, max_rows: int) -> None:
    """The rows, the notes and the example of a failed row come from one fetch."""
    job = small_job(write_input(tmp_path / "in"), tmp_path / "out")
    job["spec"]["errors"]["maxRows"] = max_rows
    with counted(Location, "read") as reads:
        report = run_without_ray(job)
    assert report.state == (JobState.SUCCEEDED if max_rows > 1 else JobState.FAILED)
    assert report.memory is not None
    fetched = Counter(call.args[0].path.split("/")[-1] for call in reads.call_args_list)
    assert {fetched[name] for name in fetched if parse_manifest_name(name)} == {1}


def test_unwritable_report_directory_fails_the_job_early(tmp_path: Path) -> None:
    def refuse(report: Report) -> None:
        raise PermissionError("this directory takes no reports")

    run = run_in_process(slow_job(tmp_path), on_publish=refuse)
    assert run.report.state == JobState.FAILED
    assert "takes no reports" in (run.report.message or "")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("state", ORDER)
def test_later_failure_to_publish_is_ignored(often: None, tmp_path: Path, state: JobState) -> None:
    def refuse(report: Report) -> None:
        if report.state == state:
            raise OSError("no space left on device")

    source = write_lines(tmp_path / "in", {"a.txt": ["text"] * 30})
    run = run_in_process(job_document("job", source, tmp_path / "out"), on_publish=refuse)
    assert run.report.state == JobState.SUCCEEDED
    kept = (tmp_path / "out" / "_batchinference" / "report.json").read_bytes()
    assert Report.parse(kept).state == JobState.SUCCEEDED
