"""What cannot work is told within a minute of its cause, in words that name it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.documents import document, model_step, python_step
from support.kubectl import Kubectl, condition, eventually
from support.objectstore import ObjectStore

Job = dict[str, Any]
MINUTE = 60
START_OF_A_CLUSTER = 180
RAISING = """
def divide(batch):
    raise ZeroDivisionError("no row can be divided today")
"""


@pytest.fixture(scope="module")
def texts(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a small input."""
    directory: Path = tmp_path_factory.mktemp("texts")
    (directory / "lines.txt").write_text("".join(f"line {n}\n" for n in range(200)))
    store.upload(directory, "failures/in")
    return store.uri("failures/in")


@pytest.fixture
def job(texts: str, store: ObjectStore) -> Job:
    """A job in which nothing is wrong yet."""
    return document(
        "failing",
        read={"format": "text", "paths": [texts]},
        write={"format": "parquet", "path": store.uri("failures/out"), "mode": "overwrite"},
    )


def changed(job: Job, **spec: Any) -> Job:
    return {**copy.deepcopy(job), "spec": {**job["spec"], **spec}}


def driver_started(kubectl: Kubectl, name: str) -> None:
    """Wait until the driver runs: nothing of the job's own can fail before."""

    def started() -> bool:
        ray_job = kubectl.get("rayjob", f"{name}-1") or {}
        return bool(ray_job.get("status", {}).get("jobStatus"))

    eventually(f"the driver of {name} starts", started, START_OF_A_CLUSTER)


def failure(kubectl: Kubectl, name: str) -> tuple[str, str]:
    """Reason and message of a job that fails within a minute of its driver's start."""
    driver_started(kubectl, name)
    found = kubectl.wait_condition(name, "Failed", MINUTE)
    assert kubectl.status(name)["phase"] == "Failed"
    return found["reason"], found["message"]


def test_a_model_that_is_not_there(
    kubectl: Kubectl, job: Job, store: ObjectStore, create: Callable[[Job], str]
) -> None:
    step = model_step()
    step["model"]["source"] = store.uri("models/nowhere")
    reason, message = failure(kubectl, create(changed(job, steps=[step])))
    assert reason == "ModelLoad"
    assert store.uri("models/nowhere") in message


def test_a_model_that_the_hub_does_not_give(
    kubectl: Kubectl, job: Job, create: Callable[[Job], str]
) -> None:
    step = model_step()
    step["model"]["source"] = "nobody/no-such-model"
    reason, message = failure(kubectl, create(changed(job, steps=[step])))
    assert reason == "ModelLoad"
    assert "nobody/no-such-model" in message


def test_an_input_path_that_is_not_there(
    kubectl: Kubectl, job: Job, store: ObjectStore, create: Callable[[Job], str]
) -> None:
    read = {"format": "text", "paths": [store.uri("nothing/here")]}
    reason, message = failure(kubectl, create(changed(job, read=read)))
    assert reason == "BadInput"
    assert store.uri("nothing/here") in message


def test_a_step_that_raises(kubectl: Kubectl, job: Job, create: Callable[[Job], str]) -> None:
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "raising"},
            "data": {"raising.py": RAISING},
        }
    )
    cluster = {
        "volumes": [{"name": "code", "mountPath": "/code", "configMap": {"name": "raising"}}],
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
    }
    spec = {"steps": [python_step("divide", "raising:divide")], "cluster": cluster}
    reason, message = failure(kubectl, create(changed(job, **spec)))
    assert reason == "Application"
    for word in ("divide", "ZeroDivisionError", "no row can be divided today", "lines.txt"):
        assert word in message


def test_an_image_that_cannot_be_pulled(
    kubectl: Kubectl, job: Job, create: Callable[[Job], str]
) -> None:
    image = "localhost:5000/batchinference/no-such-image:v0"
    name = create(changed(job, cluster={"image": image}))
    status = reason_within_a_minute(kubectl, name, "ImagePull")
    assert status["phase"] == "Pending"
    assert image in ready(status)["message"]


def test_gpus_that_no_node_has(
    kubectl: Kubectl, example: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = example("text-embeddings")
    job["spec"]["steps"][1]["resources"] = {"gpu": 64}
    name = create(job)
    driver_started(kubectl, name)
    status = reason_within_a_minute(kubectl, name, "Unschedulable")
    assert status["phase"] == "Pending"
    assert "Insufficient nvidia.com/gpu" in ready(status)["message"]


def reason_within_a_minute(kubectl: Kubectl, name: str, reason: str) -> dict[str, Any]:
    """The status of a job that is not ready for this reason."""

    def so() -> dict[str, Any] | None:
        status = kubectl.status(name)
        return status if ready(status)["reason"] == reason else None

    return eventually(f"{name} is not ready because of {reason}", so, MINUTE)


def ready(status: dict[str, Any]) -> dict[str, Any]:
    return condition(status, "Ready", "False") or {"reason": "", "message": ""}


def test_a_job_that_would_wait_for_ever_gets_no_rayjob(
    kubectl: Kubectl, job: Job, create: Callable[[Job], str]
) -> None:
    steps = [python_step(replicas={"min": 4, "max": 4}, resources={"cpu": 2})]
    began = time.monotonic()
    name = create(changed(job, steps=steps, cluster={"workers": {"cpu": 4, "max": 2}}))
    found = kubectl.wait_condition(name, "Failed", MINUTE)
    assert found["reason"] == "InvalidSpec"
    assert "spec.cluster.workers.max" in found["message"]
    assert "wait for ever" in found["message"]
    assert time.monotonic() - began < MINUTE
    assert kubectl.get("rayjob", f"{name}-1") is None
