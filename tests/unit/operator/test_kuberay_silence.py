"""RayJobs that KubeRay does not act on, because it is down, or has no permissions."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.causes import Cause
from batchinference.spec.lifecycle import STOP_SECONDS
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.kuberay_silence import KUBERAY_SECONDS
from batchinference_operator.status.pod_problems import Crash, Disruption
from batchinference_operator.status.pod_view import PodView
from plugins.messages import Messages
from support.operator.objects import CREATED, pod_body, ray_job_body
from support.operator.reconcile_loop import ReconcileLoop

Object = dict[str, Any]

ACCEPTED = {"jobDeploymentStatus": "Initializing", "rayClusterName": "job-1-cluster"}


@pytest.mark.parametrize(
    ("status", "spec"),
    [
        ({}, {}),
        (ACCEPTED | {"startTime": CREATED}, {}),
        ({}, {"managedBy": "kueue.x-k8s.io/multikueue"}),
    ],
    ids=["unaccepted", "without-pods", "on-another-cluster"],
)
def test_ray_job_that_kuberay_ignores_is_reported_after_a_minute(
    status: Object, spec: Object, messages: Messages
) -> None:
    loop = ReconcileLoop()
    loop.reconcile()
    body = ray_job_body("job-1") | {"status": status}
    loop.ray_jobs["job-1"] = body | {"spec": {**body["spec"], **spec}}
    actions = loop.reconcile(1)
    assert loop.reason == "Starting"
    assert actions.requeue_after is not None
    assert actions.requeue_after <= KUBERAY_SECONDS - 1
    loop.reconcile(KUBERAY_SECONDS)
    assert (loop.phase, loop.reason) == ("Starting", "KubeRayNotResponding")
    messages.check(loop.message)


@pytest.mark.parametrize("suspend", [True, False], ids=["suspended", "retried"])
def test_ray_job_that_is_not_deleted_is_reported(suspend: bool, messages: Messages) -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.spec["suspend"] = suspend
    if not suspend:
        loop.set_report(JobState.FAILED, reason="NodeLost", message="lost")
    loop.reconcile()
    loop.reconcile(STOP_SECONDS)
    loop.reconcile(KUBERAY_SECONDS - 1)
    assert loop.reason == loop.phase
    loop.reconcile(1)
    assert loop.reason == "KubeRayNotResponding"
    messages.check(loop.message)


@pytest.mark.parametrize("phase", [None, "Unknown"])
def test_ray_job_that_is_not_deleted_is_reported_after_an_edit_of_the_phase(phase: object) -> None:
    loop = ReconcileLoop()
    loop.run()
    loop.set_report(JobState.FAILED, reason="NodeLost", message="lost")
    loop.reconcile()
    loop.reconcile(STOP_SECONDS)
    loop.status["phase"] = phase
    loop.reconcile(KUBERAY_SECONDS)
    assert (loop.phase, loop.reason) == ("Pending", "KubeRayNotResponding")


@pytest.mark.parametrize("had", ["pods", "crashes", "disruption"])
def test_kuberay_that_has_created_pods_responds(had: str) -> None:
    """Between two heads of a RayJob there may be no pod."""
    loop = ReconcileLoop()
    loop.reconcile()
    loop.set_kuberay_status(**ACCEPTED, startTime=CREATED)
    pod = PodView.of(pod_body())
    lost = Disruption(Cause.NODE_LOST, "lost", of_head=True, replaced=True)
    crash = Crash("job-1-head", Cause.CRASH_LOOP, "exit code 1", of_head=True)
    setattr(loop, had, {"pods": (pod,), "crashes": (crash,), "disruption": lost}[had])
    loop.reconcile(KUBERAY_SECONDS)
    assert loop.reason != "KubeRayNotResponding"
