"""An attempt without capacity ends, and the next one tries other devices or other nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from batchinference.spec.causes import Cause
from batchinference_operator.reconcile.cost import Prices
from batchinference_operator.status.pod_view import PodView
from plugins.messages import Messages
from support.documents.minimal import model_step
from support.operator.objects import INITIALIZING, pod_body
from support.operator.reconcile_loop import ReconcileLoop

PROFILES: dict[str, Any] = {
    "H100": {"nodeSelector": {"gpu": "h100"}, "deviceHour": "4"},
    "A100": {"nodeSelector": {"gpu": "a100"}, "deviceHour": "2.5"},
    "spot": {"nodeSelector": {"capacity": "spot"}, "priceFactor": 0.4},
    "on-demand": {"nodeSelector": {"capacity": "on-demand"}},
}
FALLBACK = {"after": "10m", "capacityTypes": ["spot", "on-demand"]}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": "0/2 nodes are available"}  # fmt: skip
ORDER = [("H100", "spot"), ("A100", "spot"), ("H100", "on-demand"), ("A100", "on-demand")]


def fallback_loop(types: Any = ("H100", "A100"), **spec: Any) -> ReconcileLoop:
    """Return a job that asks for these types of GPUs, on spot nodes first."""
    resources = {"gpu": 1, "acceleratorType": list(types)}
    cluster = {"profiles": PROFILES, "fallback": FALLBACK, **spec.pop("cluster", {})}
    return ReconcileLoop(steps=[model_step(resources=resources)], cluster=cluster, **spec)


def worker(loop: ReconcileLoop, *, scheduled: bool = False) -> PodView:
    """Return a pod with a GPU of the running attempt."""
    number = loop.status["attempt"]
    pod = PodView.of(pod_body("worker", attempt=number, gpus=1, conditions=[UNSCHEDULABLE]))
    created = loop.now.timestamp()
    if scheduled:
        return replace(pod, group="embed", created_at=created, scheduled_at=created, problem=None)
    return replace(pod, group="embed", created_at=created)


def start(loop: ReconcileLoop) -> dict[str, Any]:
    """Start the next attempt, and return the node selector of its GPU pods."""
    if loop.status:
        loop.pods = ()
        loop.remove()
    _, ray_job = loop.reconcile().create
    loop.set_kuberay_status(**INITIALIZING)
    loop.reconcile()
    assert len([one for one in loop.ray_jobs.values() if "deletionTimestamp" not in one]) == 1
    *_, group = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return dict(group["template"]["spec"]["nodeSelector"])


def wait_for_nodes(loop: ReconcileLoop, seconds: float) -> None:
    """Let a GPU pod wait for so long."""
    loop.pods = (worker(loop),)
    loop.reconcile()
    loop.reconcile(seconds)


def test_each_attempt_tries_the_next_choice_and_the_last_one_waits() -> None:
    loop = fallback_loop()
    for number, (kind, capacity) in enumerate(ORDER, start=1):
        assert start(loop) == {"gpu": kind.lower(), "capacity": capacity}
        choice = loop.attempt["choice"]
        assert (choice["number"], choice["choices"]) == (number, 4)
        assert (choice["acceleratorTypes"], choice["capacityType"]) == ([kind], capacity)
        wait_for_nodes(loop, 599)
        assert "outcome" not in loop.attempt
        loop.reconcile(2)
        if number < 4:
            assert (loop.attempt["outcome"], loop.attempt["cause"]) == ("Failed", "NoCapacity")
    loop.reconcile(100_000)
    assert "outcome" not in loop.attempt
    assert loop.reason == Cause.UNSCHEDULABLE
    assert loop.status["failedAttempts"] == 0


def test_message_names_the_choice_and_the_reason(messages: Messages) -> None:
    loop = fallback_loop()
    start(loop)
    wait_for_nodes(loop, 601)
    messages.check(loop.attempt["message"])


def test_attempts_without_capacity_are_no_failures() -> None:
    loop = fallback_loop(retry={"maxAttempts": 1})
    start(loop)
    wait_for_nodes(loop, 601)
    assert loop.status["phase"] == "Retrying"
    assert start(loop)["gpu"] == "a100"


def test_first_choice_is_tried_again_after_another_end_of_an_attempt() -> None:
    loop = fallback_loop()
    start(loop)
    wait_for_nodes(loop, 601)
    assert start(loop) == {"gpu": "a100", "capacity": "spot"}
    loop.pods = (worker(loop, scheduled=True),)
    loop.fail("Preempted")
    loop.report = None
    loop.reconcile(1000)
    assert start(loop) == {"gpu": "h100", "capacity": "spot"}


def test_group_with_one_scheduled_pod_does_not_wait() -> None:
    loop = fallback_loop()
    start(loop)
    loop.pods = (worker(loop, scheduled=True), worker(loop))
    loop.reconcile()
    loop.reconcile(10_000)
    assert "outcome" not in loop.attempt
    assert "waiting" not in loop.attempt


def test_pods_that_the_autoscaler_replaces_wait_since_the_first_one() -> None:
    loop = fallback_loop()
    start(loop)
    wait_for_nodes(loop, 400)
    loop.pods = ()
    loop.reconcile(1)
    assert loop.attempt["waiting"].keys() == {"group", "since"}
    wait_for_nodes(loop, 201)
    assert loop.attempt["cause"] == "NoCapacity"


@pytest.mark.parametrize(
    ("had_a_node", "gap"),
    [(False, 61), (False, 7200), (True, 0)],
    ids=["no pod for a minute", "no pod for hours", "a pod had a node"],
)
def test_time_starts_again_after_no_pod_has_waited(had_a_node: bool, gap: float) -> None:
    loop = fallback_loop()
    start(loop)
    wait_for_nodes(loop, 400)
    loop.pods = (worker(loop, scheduled=True),) if had_a_node else ()
    loop.reconcile(1)
    loop.reconcile(gap)
    wait_for_nodes(loop, 599)
    assert "outcome" not in loop.attempt
    loop.reconcile(2)
    assert loop.attempt["cause"] == "NoCapacity"


def test_each_gap_without_a_waiting_pod_is_measured_alone() -> None:
    loop = fallback_loop()
    start(loop)
    for _ in range(3):
        wait_for_nodes(loop, 160)
        loop.pods = ()
        loop.reconcile(1)
        loop.reconcile(39)
    wait_for_nodes(loop, 1)
    assert loop.attempt["cause"] == "NoCapacity"


def test_another_group_waits_after_the_gap_of_the_first_one() -> None:
    loop = fallback_loop()
    start(loop)
    wait_for_nodes(loop, 400)
    loop.pods = (replace(worker(loop), group="other"),)
    loop.reconcile(1)
    assert loop.attempt["waiting"]["group"] == "embed"
    loop.reconcile(61)
    assert loop.attempt["waiting"]["group"] == "other"


def test_loss_of_all_nodes_is_a_lack_of_capacity() -> None:
    loop = fallback_loop()
    start(loop)
    loop.pods = (worker(loop, scheduled=True),)
    loop.run()
    wait_for_nodes(loop, 599)
    assert loop.status["phase"] == "Running"
    loop.reconcile(2)
    assert loop.attempt["cause"] == "NoCapacity"


def test_head_without_node_is_no_lack_of_capacity() -> None:
    loop = fallback_loop()
    start(loop)
    loop.pods = (PodView.of(pod_body(conditions=[UNSCHEDULABLE])),)
    loop.reconcile()
    loop.reconcile(10_000)
    assert "outcome" not in loop.attempt


def test_queue_that_does_not_admit_is_a_lack_of_capacity() -> None:
    loop = fallback_loop(cluster={"queueName": "gpu"})
    loop.queue()
    loop.reconcile(599)
    assert "outcome" not in loop.attempt
    loop.reconcile(2)
    assert loop.attempt["cause"] == "NoCapacity"
    assert start(loop)["gpu"] == "a100"


def test_deadline_for_the_first_row_fails_only_the_last_choice() -> None:
    loop = fallback_loop(["A100"], deadlines={"pending": "60s"})
    start(loop)
    wait_for_nodes(loop, 61)
    assert loop.attempt["cause"] == "NoCapacity"
    start(loop)
    wait_for_nodes(loop, 61)
    assert loop.attempt["cause"] == "Unschedulable"
    assert loop.status["phase"] == "Failed"


def test_job_may_fail_without_capacity() -> None:
    loop = fallback_loop(retry={"onCause": {"NoCapacity": "Fail"}})
    start(loop)
    wait_for_nodes(loop, 601)
    assert (loop.status["phase"], loop.reason) == ("Failed", "NoCapacity")


def test_operator_that_stops_before_it_writes_the_status_keeps_the_choice() -> None:
    loop = fallback_loop()
    start(loop)
    wait_for_nodes(loop, 601)
    loop.pods = ()
    loop.remove()
    loop.begin(0)
    loop.reconcile()
    assert loop.attempt["choice"]["acceleratorTypes"] == ["A100"]


def test_choice_of_a_rayjob_that_users_have_changed_is_ignored() -> None:
    loop = fallback_loop()
    loop.reconcile()
    for text in ("{", "[]", json.dumps({"number": 0, "choices": 1}), "x" * 10_000):
        loop.ray_job["metadata"]["annotations"]["batchinference.dev/choice"] = text
        loop.reconcile()
    assert "choice" not in loop.attempt


def test_cost_has_the_price_of_each_choice() -> None:
    """An hour of an H100 on a spot node costs 4 x 0.4, and one of an A100 2.5 x 0.4."""
    loop = fallback_loop(retry={"backoff": {"initial": "0s"}})
    loop.config = replace(loop.config, prices=Prices(currency="EUR", deviceHour="9"))
    for expected in ("1.6", "2.6"):
        start(loop)
        since = loop.now.timestamp()
        loop.pods = (replace(worker(loop, scheduled=True), cpus=0.0),)
        loop.reconcile(3600)
        loop.pods = (replace(loop.pods[0], ended_at=since + 3600),)
        loop.reconcile()
        assert float(loop.status["cost"]["amount"]) == pytest.approx(float(expected), abs=0.01)
        if expected == "1.6":
            wait_for_nodes(loop, 601)
