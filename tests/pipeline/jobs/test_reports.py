"""The reports that a job publishes while it runs, and the report that it leaves at its output."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference import __version__
from batchinference.pipeline import job as job_module
from batchinference.pipeline.commit.manifest import Manifest, parse_manifest_name
from batchinference.pipeline.execution.stop_signals import run_monitored
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.report.builder import ReportBuilder
from batchinference.pipeline.storage.location import Location
from batchinference.spec.progress import Counts, Progress
from batchinference.spec.report import JobState, Report
from support.documents.minimal import Document
from support.jobs.on_ray import Run, errors_of, job_document, run_in_process, run_job, write_lines
from support.jobs.without_ray import run_without_ray, small_job, write_input
from support.outputs.builders import layout_of
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
    assert (report.name, report.attempt, report.version) == ("slow", 1, __version__)
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


@pytest.mark.parametrize("max_rows", [10, 1])
def test_manifests_are_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    """The rows, the notes and the example of a failed row come from one fetch."""
    fetched: Counter[str] = Counter()
    read = Location.read

    def counted(self: Location, limit: int | None = None) -> bytes:
        fetched[self.path.split("/")[-1]] += 1
        return read(self, limit)

    job = small_job(write_input(tmp_path / "in"), tmp_path / "out")
    job["spec"]["errors"]["maxRows"] = max_rows
    monkeypatch.setattr(Location, "read", counted)
    report = run_without_ray(job)
    assert report.state == (JobState.SUCCEEDED if max_rows > 1 else JobState.FAILED)
    assert report.memory is not None
    manifests = {name: times for name, times in fetched.items() if parse_manifest_name(name)}
    assert set(manifests.values()) == {1}


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


COUNTS = st.builds(Counts, **dict.fromkeys(("read", "written", "failed"), st.integers(0, 500)))
TOTALS = st.none() | st.builds(RowCount, st.integers(0, 2000), st.booleans())


def begun(directory: Path, total: RowCount | None, before: int = 0) -> ReportBuilder:
    reports = ReportBuilder("job", layout_of(directory))
    reports.begin_rows(total, Counts(read=before, written=before))
    return reports


def progress_of(reports: ReportBuilder) -> Progress:
    found = reports.build().progress
    assert found is not None
    return found


@given(TOTALS, st.lists(COUNTS, max_size=20), COUNTS)
def test_progress_never_goes_back_and_ends_with_the_final_count(
    total: RowCount | None, readings: list[Counts], last: Counts
) -> None:
    reports = begun(Path("out"), total)
    shown = [progress_of(reports)]
    for counts in readings:
        reports.read(counts)
        shown.append(progress_of(reports))
    for before, after in pairwise(shown):
        assert before.rows <= after.rows
        assert (before.total or 0) <= (after.total or 0)
    reports.enter(JobState.FINALIZING)
    reports.finish(last)
    assert progress_of(reports).at_rate(None) == Progress.of(last.read, last.read)
    assert reports.build().counts == last


def test_speed_of_a_finished_job_is_averaged_over_its_running_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary shows the speed next to the running time."""
    clock = iter((0.0, 0.0, 0.0, 5.0, 5.0, 25.0, 25.0, 25.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    reports = begun(tmp_path, RowCount(400, estimated=False), before=100)
    reports.read(Counts(read=399))
    reports.enter(JobState.FINALIZING)
    reports.finish(Counts(read=400))
    assert progress_of(reports).rows_per_second == 300 / reports.build().seconds["running"]


def test_rows_of_earlier_attempts_do_not_count_for_the_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    reports, shown = begun(tmp_path, RowCount(300, estimated=False), before=200), []
    for now, rows in ((100.0, 200), (110.0, 250), (120.0, 240)):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        reports.read(Counts(read=rows, written=rows))
        shown.append(progress_of(reports))
    assert [each.rows for each in shown] == [200, 250, 250]
    assert [each.rows_per_second for each in shown] == [None, 5.0, 2.5]
    assert [each.eta for each in shown] == [None, "10s", "20s"]


def test_report_has_the_notes_of_all_attempts(tmp_path: Path) -> None:
    run = JobRun(Mock(), Mock(), Mock(), Mock())
    run._reports = ReportBuilder("job", layout_of(tmp_path))
    for note in ({"retries": 3, "task": 1}, {"peak_bytes": 1}):
        run._add_notes([("write", json.dumps(note))])
    found = run._reports.build()
    assert found.memory is not None
    assert (found.retries, found.memory.peak_worker_bytes) == (3, 1)


def test_each_output_has_its_own_rows_over_time(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    reports = ReportBuilder("two", layout)
    for rows in (400, 10):
        reports.begin_output(layout)
        reports.begin_rows(None, Counts())
        reports.read(Counts(read=rows))
    history = reports.build().rows_over_time
    assert history is not None
    assert history.rows == [0, 10]
