"""What `watch` and `ui` see of a job: its speed is measured if its driver does not report it."""

from __future__ import annotations

import pytest

from batchinference.api import observation
from batchinference.api.display import summary_of
from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.api.observation import Observation, SpeedMeter, observed_job, observed_output
from batchinference.api.output_status import OutputStatus
from batchinference.spec.progress import Counts, Progress, ProgressHistory
from support.outputs.builders import succeeded_report


def seen(rows: int, rate: float | None = None, *, ended: bool = False) -> Observation:
    return Observation(
        ("output", "./out"), "running", Progress.of(rows, 60, rate=rate), None, ended
    )


@pytest.mark.parametrize(
    ("observations", "shown"),
    [
        ([(0, seen(10)), (10, seen(30))], Progress.of(30, 60, rate=2.0)),
        ([(0, seen(10)), (10, seen(30, 9.0))], Progress.of(30, 60, rate=9.0)),
        ([(0, seen(10)), (10, seen(60, ended=True))], Progress.of(60, 60)),
        (
            [(0, seen(10)), (10, seen(30)), (20, seen(5)), (25, seen(15))],
            Progress.of(15, 60, rate=2.0),
        ),
    ],
)
def test_speed(
    observations: list[tuple[float, Observation]], shown: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = SpeedMeter(ProgressHistory(0.0))
    for now, each in observations:
        monkeypatch.setattr(observation.time, "monotonic", lambda now=now: now)
        result = meter.with_measured_speed(each)
    assert result.progress == shown


def test_jobs_of_one_output_are_added_up() -> None:
    counts = Counts(read=9, written=7, failed=2), Counts(read=1, written=0, failed=1)
    first = OutputStatus("./out", "complete", Progress.of(9, 9), counts[0], 1, "a on laptop")
    rest = Progress.of(1, 9, estimated=True)
    second = OutputStatus("./out", "unfinished", rest, counts[1], 1, "a on laptop")
    output = observed_output("./out", [first, second])
    assert (output.state, output.ended, output.failed) == ("unfinished", True, True)
    assert output.progress == Progress.of(10, 18, estimated=True)
    assert output.counts == Counts(read=10, written=7, failed=3)


@pytest.mark.parametrize("state", ["complete", "running"])
def test_name_duration_and_end_are_those_of_the_last_run_once_it_has_ended(state: str) -> None:
    last = succeeded_report("./out", name="breeds", seconds={"preparing": 10, "running": 70})
    progress = Progress.of(9, 9)
    stored = OutputStatus("./out", state, progress, Counts(), 1, "a", starting=True, report=last)
    output = observed_output("./out", [stored])
    known = (output.name, output.took, output.ended_at)
    assert known == (("breeds", "1m20s", last.updated_at) if state == "complete" else ("", "", ""))


def test_replaced_files_are_shown() -> None:
    files = {"recomputed": 2, "removed": 1}
    status = {"phase": "Running", "replacedFiles": files}
    job = {"metadata": {"name": "demo"}, "spec": {"write": {"path": "out"}}, "status": status}
    last = succeeded_report("./out", replacedFiles=files)
    counts, progress = Counts(), Progress.of(9, 9)
    stored = OutputStatus("./out", "complete", progress, counts, 1, "a", report=last)
    seen = (observed_job(JobStatus.of(job)), observed_output("./out", [stored]))
    shown = [dict(observation.lines)["files"] for observation in seen]
    assert shown == ["2 recomputed, 1 removed"] * 2
    assert dict(summary_of(last, resumes=True))["files"] == shown[0]


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ({"number": 1, "choices": 1, "acceleratorTypes": ["T4"]}, "T4"),
        ({"number": 2, "choices": 4, "acceleratorTypes": ["H100", "T4"], "capacityType": "spot",
          "deviceHour": "1.6"}, "H100+T4 spot, 1.6 per device hour (choice 2 of 4)"),
        (None, None),
    ],
)  # fmt: skip
def test_devices_of_the_last_attempt_are_shown(choice: object, shown: str | None) -> None:
    last = {"number": 2, **({"choice": choice} if choice else {})}
    status = {"phase": "Running", "devices": 8, "attempts": [{"number": 1, "choice": {}}, last]}
    job = {"metadata": {"name": "job"}, "spec": {"write": {"path": "s3://a"}}, "status": status}
    lines = dict(observed_job(JobStatus.of(job)).lines)
    assert (lines.get("devices"), lines["device count"]) == (shown, "8")
