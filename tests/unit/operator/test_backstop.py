"""The deadlines by which KubeRay ends an attempt that the operator has not ended."""

from __future__ import annotations

import asyncio
from datetime import datetime
from math import inf
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchinference.rendering import QUEUE_LABEL, KubeRayDeadlines
from batchinference.rendering.rayjob import GRACE_SECONDS
from batchinference.spec.causes import Cause
from batchinference.spec.report import JobState
from batchinference_operator.kube.api_errors import Conflict, Refused, Unreachable
from batchinference_operator.reconcile.deadlines import attempt_deadlines, job_deadlines
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from batchinference_operator.status.pod_problems import Disruption
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.harness import Harness
from support.operator.objects import CONFIG, INITIALIZING, RUNNING, job_body, pod_body
from support.operator.reconcile_loop import ReconcileLoop
from support.operator.virtual_time import in_virtual_time
from support.tiers import examples

HOUR = 3600
OUT_OF_TIME = {"jobDeploymentStatus": "Failed", "jobStatus": "RUNNING",
               "message": "The RayJob has passed the activeDeadlineSeconds."}  # fmt: skip
GATED = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                         "message": "Scheduling is blocked"}]}  # fmt: skip


def backstop(loop: ReconcileLoop) -> KubeRayDeadlines:
    return KubeRayDeadlines.in_spec(loop.ray_job["spec"])


def suspend(loop: ReconcileLoop) -> None:
    """Suspend the RayJob, as Kueue does when it preempts the attempt."""
    loop.ray_job["spec"]["suspend"] = True
    loop.ray_job["status"] = {"jobDeploymentStatus": "Suspended"}
    loop.report = None


def admit(loop: ReconcileLoop) -> None:
    loop.ray_job["spec"]["suspend"] = False
    loop.ray_job["status"] = {**INITIALIZING, "rayClusterName": "job-1-cluster"}


@pytest.mark.parametrize("queue", [None, "gpu"])
def test_new_ray_job_has_its_backstop_already(queue: str | None) -> None:
    deadlines = {"pending": "30m", "active": "8h", "total": "24h"}
    loop = ReconcileLoop(deadlines=deadlines, cluster={"queueName": queue} if queue else {})
    loop.plan()
    loop.ray_job["metadata"]["labels"] |= {QUEUE_LABEL: queue} if queue else {}
    loop.ray_job["spec"]["suspend"] = queue is not None
    assert [loop.reconcile(60).update_deadlines for _ in range(3)] == [None] * 3


@pytest.mark.parametrize(
    ("deadlines", "expected"),
    [
        ({"active": "5h"}, KubeRayDeadlines(6 * HOUR)),
        ({"active": "2h"}, KubeRayDeadlines(3 * HOUR)),
        ({"active": "1h", "total": "30m"}, KubeRayDeadlines(5400)),
        ({"active": "1h", "pending": "2h"}, KubeRayDeadlines(2 * HOUR, 3 * HOUR)),
        ({}, KubeRayDeadlines()),
    ],
    ids=["raised", "lowered", "total", "pending", "none"],
)
def test_changed_deadlines_change_the_backstop(
    deadlines: dict[str, str], expected: KubeRayDeadlines
) -> None:
    loop = ReconcileLoop(deadlines={"active": "1h"})
    loop.run()
    loop.spec["deadlines"] = deadlines
    loop.reconcile(60)
    assert (loop.phase, backstop(loop)) == ("Running", expected)
    assert loop.reconcile().update_deadlines is None


def test_attempt_of_an_older_operator_gets_a_backstop() -> None:
    loop = ReconcileLoop(deadlines={"active": "8h"})
    loop.run()
    del loop.ray_job["spec"]["activeDeadlineSeconds"]
    loop.reconcile()
    assert backstop(loop) == KubeRayDeadlines(9 * HOUR)


def test_deleted_ray_job_is_not_changed() -> None:
    loop = ReconcileLoop(deadlines={"active": "1h"})
    loop.run()
    loop.ray_job["metadata"]["deletionTimestamp"] = to_rfc3339(loop.now)
    loop.spec["deadlines"] = {"active": "2h"}
    assert loop.reconcile().update_deadlines is None


def test_queued_attempt_has_the_active_deadline_from_its_first_row() -> None:
    loop = ReconcileLoop(cluster={"queueName": "gpu"}, deadlines={"active": "8h", "pending": "1h"})
    loop.plan()
    loop.ray_job["metadata"]["labels"][QUEUE_LABEL] = "gpu"
    suspend(loop)
    loop.reconcile()
    admit(loop)
    loop.reconcile(2 * HOUR)
    assert backstop(loop) == KubeRayDeadlines()
    loop.run(rows=5)
    assert backstop(loop) == KubeRayDeadlines(active=11 * HOUR)
    suspend(loop)
    loop.reconcile(60)
    assert backstop(loop) == KubeRayDeadlines(), "its pods may be gated again"


def test_hostile_time_in_a_status_changes_no_backstop() -> None:
    loop = ReconcileLoop(deadlines={"total": "1h"})
    loop.run()
    loop.attempt["admittedTime"] = "2026-03-01T12:00:00+99:99"
    loop.reconcile(60)
    assert (loop.phase, backstop(loop)) == ("Running", KubeRayDeadlines(2 * HOUR))


class Play:
    """An attempt under all kinds of changes, and the time from which KubeRay's deadlines count."""

    def __init__(self, queue: str | None) -> None:
        self.loop = ReconcileLoop(cluster={"queueName": queue} if queue else {})
        self.loop.plan()
        self.loop.ray_job["metadata"]["labels"] |= {QUEUE_LABEL: queue} if queue else {}
        self.loop.set_kuberay_status(**INITIALIZING)
        self.started: datetime = self.loop.now

    def act(self, action: str, value: int) -> None:
        loop = self.loop
        kept = bool(loop.ray_job["spec"].get("suspend"))
        if action == "suspend" and not kept:
            suspend(loop)
        elif action == "admit" and kept:
            admit(loop)
            self.started = loop.now
        elif action == "gate":
            loop.pods = (PodView.of(pod_body("job-1-worker", **GATED)),)
        elif action == "ungate":
            loop.pods = ()
        elif action == "rows" and not kept:
            loop.set_kuberay_status(**RUNNING)
            loop.set_report(JobState.RUNNING, rows=value)
        elif action in ("active", "pending", "total"):
            loop.spec["deadlines"] = {**loop.spec.get("deadlines", {}), action: f"{value + 1}m"}
        elif action == "never":
            loop.spec["deadlines"] = {}
        loop.reconcile(60 * value if action == "wait" else 1)

    def operator_left(self) -> float:
        """Return the seconds until the operator ends the attempt."""
        body = {**job_body(status=self.loop.status), "spec": self.loop.spec}
        job, spec = JobView.of(body), MutableSpec.of(self.loop.spec, CONFIG.defaults)
        ends = [
            *attempt_deadlines(job, spec, self.loop.now, ""),
            *job_deadlines(job, spec, self.loop.now),
        ]
        return min((end.remaining for end in ends), default=inf)

    def kuberay_left(self) -> float:
        """Return the seconds until KubeRay ends the attempt."""
        spec, status = self.loop.ray_job["spec"], self.loop.ray_job["status"]
        if spec.get("suspend"):
            return inf
        starting = status["jobDeploymentStatus"] == "Initializing"
        ends = (backstop(self.loop).active, backstop(self.loop).pre_running if starting else None)
        gone = (self.loop.now - self.started).total_seconds()
        return min((end - gone for end in ends if end is not None), default=inf)


ACTIONS = ("suspend", "admit", "gate", "ungate", "rows", "active", "pending", "total", "never",
           "wait", "wait")  # fmt: skip


@example(
    queue=None, actions=[("gate", 0), ("pending", 0), ("rows", 1), ("suspend", 0), ("admit", 0)]
)
@given(
    queue=st.sampled_from([None, "gpu"]),
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 600)), max_size=15),
)
@settings(max_examples=examples(300), deadline=None)
def test_operator_always_ends_an_attempt_before_kuberay(
    queue: str | None, actions: list[tuple[str, int]]
) -> None:
    play = Play(queue)
    for action, value in actions:
        play.act(action, value)
        if play.loop.phase in ("Failed", "Retrying"):
            return
        assert play.kuberay_left() >= play.operator_left() + GRACE_SECONDS - 2


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "PreRunningDeadlineExceeded"])
@pytest.mark.parametrize("disruption", [None, Disruption(Cause.NODE_LOST, "evicted", of_head=True)])
def test_attempt_that_kuberay_ended_has_the_cause_of_a_deadline(
    reason: str, disruption: Disruption | None
) -> None:
    """The operator was down. The driver still reports, and pods may have been lost."""
    loop = ReconcileLoop(deadlines={"active": "1h"})
    loop.run()
    loop.disruption = disruption
    loop.set_kuberay_status(**OUT_OF_TIME, reason=reason, endTime=to_rfc3339(loop.now))
    loop.reconcile(48 * HOUR)
    assert (loop.phase, loop.reason) == ("Failed", "DeadlineExceeded")
    assert loop.attempt["cause"] == "DeadlineExceeded"
    assert loop.message == OUT_OF_TIME["message"]


def test_success_wins_over_the_backstop() -> None:
    loop = ReconcileLoop(deadlines={"active": "1h"})
    loop.run()
    loop.set_kuberay_status(**OUT_OF_TIME, reason="DeadlineExceeded", endTime=to_rfc3339(loop.now))
    loop.set_report(JobState.SUCCEEDED, rows=10)
    loop.reconcile(60)
    assert loop.phase == "Succeeded"


async def start(harness: Harness) -> None:
    """Start a job with a deadline, then raise the deadline."""
    harness.cluster.apply(deadlines={"active": "1h"})
    await harness.ray_job().start()
    await harness.ray_job().step(**RUNNING)
    assert spec_of(harness)["activeDeadlineSeconds"] == 2 * HOUR
    harness.calls.clear()
    harness.cluster.patch("BatchInference", "job", {"spec": {"deadlines": {"active": "5h"}},
                                                    "metadata": {"generation": 2}})  # fmt: skip


def spec_of(harness: Harness) -> dict[str, Any]:
    spec: dict[str, Any] = harness.cluster.objects["RayJob", "job-1"]["spec"]
    return spec


@in_virtual_time
async def test_raised_deadline_reaches_the_ray_job_at_once(harness: Harness) -> None:
    async with harness.operator():
        await start(harness)
        before = spec_of(harness)
        await asyncio.sleep(1)
        assert spec_of(harness) == {**before, "activeDeadlineSeconds": 6 * HOUR}
        await asyncio.sleep(4 * HOUR)
    assert (harness.phase(), harness.count("limit")) == ("Starting", 1)


@pytest.mark.parametrize(
    ("fault", "limit"),
    [(Refused("403: denied by policy"), 1), (Unreachable("500: webhook"), 100),
     (Conflict("the object has been modified"), 100)],
    ids=["refused", "unreachable", "conflict"],
)  # fmt: skip
@in_virtual_time
async def test_job_continues_if_its_ray_job_cannot_be_changed(
    harness: Harness, fault: Exception, limit: int
) -> None:
    async with harness.operator():
        await start(harness)
        harness.fail_call("limit", fault)
        await asyncio.sleep(HOUR // 2)
        assert harness.cluster.status()["observedGeneration"] == 2
        assert 1 <= harness.count("limit") <= limit
        tried = harness.count("limit")
        harness.api.before = harness.record
        await asyncio.sleep(120)
    once = isinstance(fault, Refused) and not isinstance(fault, Unreachable)
    assert harness.count("limit") == tried + (0 if once else 1)
