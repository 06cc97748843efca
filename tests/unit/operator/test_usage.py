"""What a job costs: GPU seconds and CPU seconds of its pods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.report import JobState
from batchinference_operator.reconcile.beginning import LINGER_SECONDS
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.status.pods import PodView
from support.looks import Looks
from support.operator_objects import asking, placed, pod_body
from support.virtual_time import BEGINNING


def pod(
    name: str = "w", cpu: str = "2", gpus: int = 1, *, since: float = 0, attempt: int = 1,
    until: float | None = None,
) -> PodView:  # fmt: skip
    """A pod that has had its node since so many seconds, and perhaps until then."""
    status: dict[str, Any] = placed(at(since))
    if until is not None:
        end = {"terminated": {"reason": "Completed", "finishedAt": at(until)}}
        status |= {"phase": "Succeeded", "containerStatuses": [{"name": "ray", "state": end}]}
    body = pod_body(name, attempt=attempt, gpus=gpus, **status)
    return PodView.of({**body, "spec": asking(cpu)})


def at(seconds: float) -> str:
    return stamp(BEGINNING + timedelta(seconds=seconds))


def used(looks: Looks) -> tuple[int, int]:
    return looks.status.get("gpuSeconds", 0), looks.status.get("cpuSeconds", 0)


def test_gpus_and_cpus_count_times_the_seconds_that_pods_had_them() -> None:
    looks = Looks()
    looks.run()
    looks.pods = (pod("a", "4", 2), pod("b", "500m", 0))
    looks.look(100)
    assert used(looks) == (200, 450)
    assert (looks.attempt["gpuSeconds"], looks.attempt["cpuSeconds"]) == (200, 450)


def test_a_pod_counts_from_the_time_it_had_its_node_to_its_end() -> None:
    looks = Looks()
    looks.run()
    looks.pods = (pod("a", since=30, until=50), pod("b", since=90))
    looks.look(100)
    assert used(looks)[0] == 20 + 10


def test_a_pod_that_waits_for_a_node_costs_nothing() -> None:
    looks = Looks()
    looks.run()
    looks.pods = (PodView.of({**pod_body(gpus=8), "spec": asking("4")}),)
    looks.look(100)
    assert used(looks) == (0, 0)


def test_a_pod_that_is_gone_still_counts() -> None:
    looks = Looks()
    looks.run()
    looks.pods = (pod(),)
    looks.look(100)
    looks.pods = ()
    looks.look(100)
    assert used(looks) == (100, 200)


def test_the_last_seconds_of_an_attempt_are_its_own() -> None:
    looks = Looks()
    looks.run()
    looks.pods = (pod(),)
    looks.tell(JobState.SUCCEEDED)
    looks.look(100)
    assert looks.phase == "Succeeded"
    assert (used(looks)[0], looks.attempt["gpuSeconds"]) == (100, 100)


def test_pods_that_an_attempt_leaves_behind_are_not_counted_for_the_next() -> None:
    looks = Looks(retry={"backoff": {"initial": "0s"}})
    looks.run()
    looks.pods = (pod(),)
    looks.look(100)
    looks.fail()
    looks.look()
    looks.let_go()
    looks.look(LINGER_SECONDS)
    looks.run()
    looks.pods = (pod(), pod("v", since=100 + LINGER_SECONDS, attempt=2))
    looks.look(10)
    assert [attempt["gpuSeconds"] for attempt in looks.status["attempts"]] == [100, 10]
    assert used(looks)[0] == 110


def test_pods_of_another_job_that_bore_the_name_are_not_counted() -> None:
    looks = Looks(cluster={"limits": {"gpuHours": 1.0}})
    former = pod_body("former", gpus=8, **placed(at(-36_000)))
    former["metadata"]["labels"]["ray.io/cluster"] = "job-1-former"
    looks.pods = (PodView.of(former),)
    looks.run()
    looks.look(100)
    assert (looks.phase, used(looks)) == ("Running", (0, 0))


def test_the_job_has_used_what_its_attempts_have() -> None:
    looks = Looks(retry={"maxAttempts": 5, "backoff": {"initial": "0s"}})
    for attempt in range(1, 4):
        looks.run()
        began = (looks.now - BEGINNING).total_seconds()
        looks.pods = (pod(since=began, attempt=attempt),)
        looks.look(33.3)
        looks.fail()
        looks.look()
        looks.let_go()
        looks.pods = ()
    attempts = looks.status["attempts"]
    assert used(looks)[0] == sum(attempt.get("gpuSeconds", 0) for attempt in attempts) > 90


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
@settings(max_examples=100, deadline=None)
def test_looking_often_or_seldom_gives_the_same(
    moments: list[float], pods: list[tuple[str, int, int, int | None]]
) -> None:
    made = tuple(
        pod(f"w-{index}", cpu, gpus, since=since, until=None if run is None else since + run)
        for index, (cpu, gpus, since, run) in enumerate(pods)
    )
    often, seldom = Looks(), Looks()
    for looks in (often, seldom):
        looks.run()
        looks.pods = made
    for seconds in moments:
        often.look(seconds)
    whole = 2000 - (often.now - BEGINNING).total_seconds()
    often.look(whole)
    seldom.look(2000)
    assert used(often) == used(seldom)
    exact = [sum(one.gpus * _held(one) for one in made), sum(one.cpus * _held(one) for one in made)]
    assert all(abs(got - wanted) <= 0.5 for got, wanted in zip(used(seldom), exact, strict=True))


def _held(one: PodView) -> float:
    end = BEGINNING.timestamp() + 2000 if one.ended is None else one.ended
    return end - (one.started or end)
