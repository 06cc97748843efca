"""The usage of a job: device seconds and CPU seconds of its pods. A job that has used all device
hours of its limit fails."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.rendering import DEVICES_LABEL
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.cost import Prices
from batchinference_operator.reconcile.ray_job_deletion import POD_TERMINATION_SECONDS
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.timestamps import to_rfc3339
from plugins.messages import Messages
from support.operator.objects import asking, placed, pod_body
from support.operator.reconcile_loop import ReconcileLoop
from support.operator.virtual_time import BEGINNING
from support.tiers import examples


def at(seconds: float) -> str:
    return to_rfc3339(BEGINNING + timedelta(seconds=seconds))


def pod(
    name: str = "w", cpu: str = "2", gpus: int = 1, *, since: float = 0, attempt: int = 1,
    until: float | None = None,
) -> PodView:  # fmt: skip
    """Return a pod that holds its node from `since` to `until`, in seconds after BEGINNING."""
    status: dict[str, Any] = placed(at(since))
    if until is not None:
        end = {"terminated": {"reason": "Completed", "finishedAt": at(until)}}
        status |= {"phase": "Succeeded", "containerStatuses": [{"name": "ray", "state": end}]}
    body = pod_body(name, attempt=attempt, gpus=gpus, **status)
    return PodView.of({**body, "spec": asking(cpu)})


def used(loop: ReconcileLoop) -> tuple[int, int]:
    return loop.status.get("deviceSeconds", 0), loop.status.get("cpuSeconds", 0)


@pytest.mark.parametrize(
    ("pods", "usage"),
    [
        ((pod("a", "4", 2), pod("b", "500m", 0)), (200, 450)),
        ((pod("a", since=30, until=50), pod("b", since=90)), (20 + 10, 40 + 20)),
        ((PodView.of({**pod_body(gpus=8), "spec": asking("4")}),), (0, 0)),
    ],
    ids=["from-the-beginning", "for-a-while", "without-a-node"],
)
def test_pods_are_charged_while_they_hold_a_node(
    loop: ReconcileLoop, pods: tuple[PodView, ...], usage: tuple[int, int]
) -> None:
    loop.run()
    loop.pods = pods
    loop.reconcile(100)
    assert used(loop) == usage
    assert (loop.attempt.get("deviceSeconds", 0), loop.attempt.get("cpuSeconds", 0)) == usage


def test_usage_of_a_deleted_pod_is_kept(loop: ReconcileLoop) -> None:
    loop.run()
    loop.pods = (pod(),)
    loop.reconcile(100)
    loop.pods = ()
    loop.reconcile(100)
    assert used(loop) == (100, 200)


def test_attempt_is_charged_to_its_last_second(loop: ReconcileLoop) -> None:
    loop.config = replace(loop.config, prices=Prices(currency="EUR", deviceHour="3600"))
    loop.run()
    loop.pods = (pod(),)
    loop.set_report(JobState.RUNNING, rows=20, total=100)
    loop.reconcile(50)
    assert loop.status["cost"].keys() == {"amount", "currency", "forecast"}
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile(50)
    assert loop.phase == "Succeeded"
    assert (used(loop)[0], loop.attempt["deviceSeconds"]) == (100, 100)
    assert loop.status["cost"] == {"amount": "100.0000", "currency": "EUR"}


def test_leftover_pods_do_not_count_for_the_next_attempt() -> None:
    loop = ReconcileLoop(retry={"backoff": {"initial": "0s"}})
    loop.run()
    loop.pods = (pod(),)
    loop.reconcile(100)
    loop.fail()
    loop.remove()
    loop.reconcile(POD_TERMINATION_SECONDS)
    loop.run()
    loop.pods = (pod(), pod("v", since=100 + POD_TERMINATION_SECONDS, attempt=2))
    loop.reconcile(10)
    assert [attempt["deviceSeconds"] for attempt in loop.status["attempts"]] == [100, 10]
    assert used(loop)[0] == 110


def test_pods_of_a_former_job_are_not_charged() -> None:
    loop = ReconcileLoop(cluster={"limits": {"deviceHours": 1.0}})
    former = pod_body("former", gpus=8, **placed(at(-36_000)))
    former["metadata"]["labels"]["ray.io/cluster"] = "job-1-former"
    loop.pods = (PodView.of(former),)
    loop.run()
    loop.reconcile(100)
    assert (loop.phase, used(loop)) == ("Running", (0, 0))


def test_cluster_of_a_deleted_ray_job_is_charged_from_the_start_of_the_attempt(
    loop: ReconcileLoop,
) -> None:
    loop.run()
    loop.pods = (pod(since=-1000),)
    del loop.ray_jobs["job-1"]
    loop.reconcile(10)
    assert used(loop) == (10, 20)


MOMENTS = st.lists(st.floats(0.01, 40), max_size=30)
PODS = st.lists(
    st.builds(
        lambda cpu, gpus, since, length: (f"{cpu}m", gpus, since, length),
        st.integers(1, 8000),
        st.integers(0, 8),
        st.integers(0, 60),
        st.none() | st.integers(0, 60),
    ),
    min_size=1,
    max_size=4,
)


@given(moments=MOMENTS, pods=PODS)
@settings(max_examples=examples(100), deadline=None)
def test_usage_does_not_depend_on_reconcile_frequency(
    moments: list[float], pods: list[tuple[str, int, int, int | None]]
) -> None:
    made = tuple(
        pod(f"w-{index}", cpu, gpus, since=since, until=None if run is None else since + run)
        for index, (cpu, gpus, since, run) in enumerate(pods)
    )
    frequent, rare = ReconcileLoop(), ReconcileLoop()
    for loop in (frequent, rare):
        loop.run()
        loop.pods = made
    for seconds in moments:
        frequent.reconcile(seconds)
    rest = 2000 - (frequent.now - BEGINNING).total_seconds()
    frequent.reconcile(rest)
    rare.reconcile(2000)
    assert used(frequent) == used(rare)
    exact = [sum(getattr(one, field) * _held(one) for one in made) for field in ("devices", "cpus")]
    assert all(abs(got - wanted) <= 0.5 for got, wanted in zip(used(rare), exact, strict=True))


def _held(one: PodView) -> float:
    end = BEGINNING.timestamp() + 2000 if one.ended_at is None else one.ended_at
    return end - (one.scheduled_at or end)


def plan(groups: dict[int, int]) -> dict[str, Any]:
    """Return a RayJob spec. `groups` maps GPUs per worker to the maximum number of workers."""
    specs = [
        {"maxReplicas": group, "template": {"metadata": {"labels": {DEVICES_LABEL: str(gpus)}}}}
        for gpus, group in groups.items()
    ]
    return {"rayClusterSpec": {"workerGroupSpecs": specs}}


@pytest.mark.parametrize(
    ("labels", "charged"),
    [([1], 100), ([2, 1], 300), ([8], 200), ([2] * 9, 500), ([10**60], 0)],
    ids=["as-planned", "all", "too-large", "too-many", "no-number"],
)
def test_gpus_are_charged_up_to_the_plan_for_any_pod_labels(
    loop: ReconcileLoop, labels: list[int], charged: int
) -> None:
    loop.run()
    loop.ray_job["spec"] |= plan({2: 2, 1: 1})
    loop.pods = tuple(pod(f"pod-{number}", gpus=gpus) for number, gpus in enumerate(labels))
    loop.reconcile(100)
    assert used(loop)[0] == charged


def test_status_has_no_more_devices_than_the_plan(loop: ReconcileLoop) -> None:
    loop.run()
    loop.ray_job["spec"] |= plan({2: 1})
    loop.pods = (pod(gpus=8),)
    loop.reconcile(100)
    assert loop.status["devices"] == 2


HOURS = {"limits": {"deviceHours": 1.0}}


def running(gpus: int = 4, **spec: object) -> ReconcileLoop:
    loop = ReconcileLoop(**{"cluster": HOURS, **spec})
    loop.run()
    loop.pods = (pod(gpus=gpus),)
    return loop


def test_job_fails_when_its_gpu_hours_are_used(messages: Messages) -> None:
    loop = running()
    assert loop.reconcile(899.0).requeue_after == 1.0
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert (loop.phase, loop.reason) == ("Failed", "LimitExceeded")
    messages.check(loop.message)
    assert loop.attempt["cause"] == "LimitExceeded"
    assert loop.status["deviceSeconds"] == 3600
    assert [seen.name for seen in loop.reconcile(60).delete_ray_jobs] == ["job-1"]


def test_gpu_hours_of_all_attempts_count() -> None:
    loop = running(retry={"backoff": {"initial": "0s"}})
    loop.reconcile(600)
    loop.fail()
    loop.remove()
    loop.pods = ()
    loop.run()
    loop.pods = (pod(gpus=4, attempt=2, since=600),)
    loop.reconcile(299)
    assert loop.phase == "Running"
    loop.reconcile(1)
    assert loop.reason == "LimitExceeded"


def test_platform_limit_overrides_retries() -> None:
    loop = running(retry={"maxAttempts": 9, "onCause": {"LimitExceeded": "Retry"}})
    loop.reconcile(900)
    assert loop.phase == "Failed"


def test_attempt_that_uses_up_gpu_hours_is_not_retried() -> None:
    loop = running(retry={"backoff": {"initial": "0s"}})
    loop.now += timedelta(seconds=900)
    loop.fail()
    assert loop.phase == "Retrying"
    loop.reconcile()
    assert (loop.phase, loop.reason) == ("Failed", "LimitExceeded")


def test_success_wins_over_the_gpu_hours() -> None:
    loop = running()
    loop.set_report(JobState.SUCCEEDED)
    loop.reconcile(1000)
    assert loop.phase == "Succeeded"


@pytest.mark.parametrize("own", [{}, {"deviceHours": 50.0}], ids=["none", "more"])
def test_platform_limit_applies_to_every_job(own: dict[str, float]) -> None:
    loop = running(cluster={"limits": own})
    loop.limit(device_hours=1.0)
    loop.reconcile(900)
    assert loop.reason == "LimitExceeded"
