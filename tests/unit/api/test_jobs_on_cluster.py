"""The state of a job on a cluster, as the commands and the Python API show it."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.api.jobs_on_cluster import JobStatus
from batchinference.spec.progress import Progress
from plugins.messages import Messages


def status_of(**status: Any) -> JobStatus:
    spec = {"write": {"path": "s3://bucket/out"}}
    return JobStatus.of({"metadata": {"name": "demo"}, "spec": spec, "status": status})


def test_job_without_status_is_pending(messages: Messages) -> None:
    job = JobStatus.of({"metadata": {"name": "demo"}, "spec": {"write": {"path": "s3://a/b"}}})
    assert (job.phase, job.progress.rows, job.output, job.cost) == ("Pending", 0, "s3://a/b", "")
    messages.check(job.message)
    assert not job.ended


@pytest.mark.parametrize(
    ("cost", "shown"),
    [
        ({"amount": "1.204", "currency": "EUR"}, "1.20 EUR"),
        ({"amount": "0", "currency": "EUR", "forecast": "3.4"}, "0.00 EUR, 3.40 EUR expected"),
    ],
)
def test_cost_is_shown_with_the_expected_total(cost: dict[str, Any], shown: str) -> None:
    assert status_of(cost=cost).cost == shown


def test_progress_and_devices_are_those_of_the_status() -> None:
    progress = {"rows": 5, "total": 20, "percent": 25, "rowsPerSecond": 2.5, "eta": "6s"}
    job = status_of(phase="Running", progress=progress, devices=4, stage="embed", attempt=2)
    assert job.progress == Progress.of(5, 20, rate=2.5)
    assert (job.devices, job.stage, job.attempt) == (4, "embed", 2)
