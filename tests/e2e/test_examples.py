"""The examples on a cluster: the same output, row for row, as on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.deployment import CUSTOM_STEP_IMAGE
from support.kubectl import Kubectl, condition
from support.objectstore import ObjectStore
from support.outputs import Row, assert_same_rows, rows_of
from support.statuses import recorded

Job = dict[str, Any]
GPU = "nvidia.com/gpu"


class Comparison(Protocol):
    """Reads what a job has written back, and compares it with what an example writes here."""

    def __call__(self, job: Job, example: str) -> list[Row]:
        """The rows of the job."""


@pytest.fixture
def same_as_here(
    store: ObjectStore, run_locally: Callable[[str], Path], tmp_path: Path
) -> Comparison:
    def compare(job: Job, example: str) -> list[Row]:
        key = job["spec"]["write"]["path"].removeprefix(store.uri(""))
        rows = rows_of(store.download(key, tmp_path))
        assert_same_rows(rows, rows_of(run_locally(example)))
        return rows

    return compare


def test_text_embeddings_from_s3_to_s3_equal_those_made_here(
    kubectl: Kubectl,
    example: Callable[[str], Job],
    create: Callable[[Job], str],
    same_as_here: Comparison,
) -> None:
    job = example("text-embeddings")
    name = create(job)
    with recorded(kubectl, name) as statuses:
        status = kubectl.wait_complete(name, timeout=240)
    rows = same_as_here(job, "text-embeddings")

    counts = status["counts"]
    assert counts["written"] == len(rows)
    assert counts["read"] == counts["written"] + counts["skipped"]
    assert statuses.rows == sorted(statuses.rows), "progress went back"
    # it is written every five seconds
    assert len(statuses.rows) > 2, f"progress moved only {len(statuses.rows) - 1} times"
    assert statuses.rows[-1] == status["progress"]["rows"] == counts["read"]
    assert status["progress"]["percent"] == 100
    assert statuses.phases[-1] == "Succeeded"
    assert_shown(kubectl("get", "bi", name))
    assert status["startTime"] < status["completionTime"]


def assert_shown(table: str) -> None:
    """What `kubectl get bi` prints of a job that has succeeded."""
    header, line = table.splitlines()
    columns = ["NAME", "PHASE", "%", "ROWS/S", "ETA", "ATTEMPT", "ERRORS", "AGE"]
    assert header.split() == columns
    assert line.split()[1:3] == ["Succeeded", "100"]
    assert float(line.split()[3]) > 0


def test_image_classification_grows_from_no_workers_to_two_gpus(
    kubectl: Kubectl,
    example: Callable[[str], Job],
    create: Callable[[Job], str],
    same_as_here: Comparison,
) -> None:
    job = example("image-classification")
    job["spec"]["steps"][1]["replicas"] = {"min": 2, "max": 2}
    name = create(job)
    status = kubectl.wait_complete(name, timeout=240)
    group = gpu_group(kubectl.get("rayjob", status["rayJobName"]))
    assert group["minReplicas"] == group["replicas"] == 0
    assert len(created_pods(kubectl, status["rayClusterName"], group["groupName"])) == 2
    rows = same_as_here(job, "image-classification")
    right = [row["prediction"]["label"] == row["folder"] for row in rows]
    assert sum(right) >= 0.95 * status["counts"]["written"]


def gpu_group(ray_job: Any) -> Any:
    groups = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    asked = [g["template"]["spec"]["containers"][0]["resources"]["limits"].get(GPU) for g in groups]
    assert sorted(asked, key=str) == ["1", None]
    return groups[asked.index("1")]


def created_pods(kubectl: Kubectl, cluster: str, group: str) -> set[str]:
    """The pods that KubeRay says it made for a worker group; they may be gone by now."""
    events = kubectl.list("events")
    prefix = f"{cluster}-{group}-worker"
    return {
        event["involvedObject"]["name"]
        for event in events
        if event["involvedObject"]["kind"] == "Pod"
        and event["involvedObject"]["name"].startswith(prefix)
        and event["reason"] == "Scheduled"
    }


def test_a_step_of_the_users_own_image_runs(
    kubectl: Kubectl,
    example: Callable[[str], Job],
    create: Callable[[Job], str],
    same_as_here: Comparison,
) -> None:
    job = example("custom-step")
    job["spec"]["cluster"]["image"] = CUSTOM_STEP_IMAGE
    name = create(job)
    status = kubectl.wait_complete(name, timeout=240)
    assert condition(status, "Ready", "True")
    same_as_here(job, "custom-step")
