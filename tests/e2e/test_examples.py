"""Examples on a cluster write the same rows as on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.jobs import Example
from support.cluster.deployment import CUSTOM_STEP_IMAGE
from support.cluster.kubectl import Kubectl, condition
from support.cluster.waits import JOB_END, wait_until_none_is_left
from support.outputs.rows import assert_same_rows

Job = dict[str, Any]
GPU = "nvidia.com/gpu"


def test_image_classification_scales_to_two_gpus_and_decodes_only_on_cpu_workers(
    kubectl: Kubectl,
    example: Callable[..., Example],
    create: Callable[[Job], str],
    own_code: Job,
    tmp_path: Path,
) -> None:
    classification = example("image-classification")
    job = classification.job()
    truth, classify, slim = job["spec"]["steps"]
    classify["replicas"] = {"min": 2, "max": 2}
    prepare = {"name": "prepare", "python": {"callable": "slow:prepare", "method": "map"}}
    job["spec"] |= {"steps": [truth, prepare, classify, slim], "cluster": own_code}
    status = kubectl.wait_complete(create(job), JOB_END)
    group = gpu_group(kubectl.get("rayjob", status["rayJobName"]))
    assert group["minReplicas"] == group["replicas"] == 0
    assert len(created_pods(kubectl, status["rayClusterName"], group["groupName"])) == 2
    rows = classification.rows(tmp_path)
    decoding_pods = {row.pop("prepared_on") for row in rows}
    assert not [pod for pod in decoding_pods if group["groupName"] in pod]
    assert_same_rows(rows, classification.local_rows())
    right = [row["prediction"]["label"] == row["folder"] for row in rows]
    assert sum(right) >= 0.95 * status["counts"]["written"]


def gpu_group(ray_job: Any) -> Any:
    groups = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    gpus = [g["template"]["spec"]["containers"][0]["resources"]["limits"].get(GPU) for g in groups]
    assert sorted(gpus, key=str) == ["1", None]
    return groups[gpus.index("1")]


def created_pods(kubectl: Kubectl, cluster: str, group: str) -> set[str]:
    """Return the scheduled pods of a worker group, from Events: the pods may be deleted."""
    return {
        event["involvedObject"]["name"]
        for event in kubectl.list("events")
        if event["involvedObject"]["kind"] == "Pod"
        and event["involvedObject"]["name"].startswith(f"{cluster}-{group}-worker")
        and event["reason"] == "Scheduled"
    }


def test_custom_image_runs_and_ttl_removes_only_the_rayjob(
    kubectl: Kubectl, example: Callable[..., Example], create: Callable[[Job], str], tmp_path: Path
) -> None:
    custom = example("custom-step")
    job = custom.job()
    job["spec"]["cluster"]["image"] = CUSTOM_STEP_IMAGE
    job["spec"]["ttl"] = {"rayJob": "1s"}
    name = create(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert condition(status, "Ready", "True")
    assert_same_rows(custom.rows(tmp_path), custom.local_rows())
    wait_until_none_is_left(kubectl, name)
    assert kubectl.status(name) == status
