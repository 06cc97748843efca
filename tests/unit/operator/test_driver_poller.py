"""Drivers are polled outside reconciles, so a slow or silent driver delays no other job."""

from __future__ import annotations

import asyncio
import itertools
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from batchinference.spec.report import JobState
from batchinference_operator.controller.driver_poller import (
    FORGET_SECONDS,
    MAX_AGE_SECONDS,
    MAX_BACKOFF,
    MAX_POLLS,
    MAX_POLLS_PER_NAMESPACE,
    MAX_SLOW_BACKOFF,
    SILENT_POLLS,
    SILENT_SECONDS,
    SLOW_SECONDS,
    DriverPoller,
)
from batchinference_operator.reconcile.job_view import JobKey
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from batchinference_operator.status.ray_job_view import RayJobView
from plugins.messages import Messages
from support.operator.harness import Harness
from support.operator.objects import RUNNING, SUCCEEDED, job_body, ray_job_body, report
from support.operator.virtual_time import clock, in_virtual_time, until

REACHED = DriverAnswer(reached=True)
SILENT = DriverAnswer(reached=False, problem="cannot be reached")
TOKENS = ("a-token",)


@dataclass
class Heads:
    """Heads that answer after `seconds`, those in the namespace `fast` at once."""

    seconds: float = 0.0
    fast: str = ""
    answer: DriverAnswer = REACHED
    right_token: str = "a-token"
    polls: list[tuple[float, str, str]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    at_once: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    async def poll(self, namespace: str, ray_job: RayJobView, token: str) -> DriverAnswer:
        self.polls.append((clock(), namespace, token))
        for each in (namespace, "all"):
            self.at_once[each] = self.at_once.get(each, 0) + 1
            self.peak[each] = max(self.peak.get(each, 0), self.at_once[each])
        await asyncio.sleep(0.0 if namespace == self.fast else self.seconds)
        for each in (namespace, "all"):
            self.at_once[each] -= 1
        if token != self.right_token:
            return DriverAnswer(reached=False, problem="rejects the token", unauthorized=True)
        return self.answer

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        self.stopped.append(token)

    def pauses(self) -> list[float]:
        times = [at for at, _, _ in self.polls]
        return [after - before - self.seconds for before, after in itertools.pairwise(times)]


@pytest.fixture
def heads() -> Heads:
    return Heads()


def seen(uid: str = "a", **status: Any) -> RayJobView:
    return replace(RayJobView.of(ray_job_body(**{**RUNNING, **status})), uid=uid)


@asynccontextmanager
async def polling(heads: Heads) -> AsyncIterator[DriverPoller]:
    polls = DriverPoller(heads, clock)
    tasks = [asyncio.create_task(polls.work()) for _ in range(MAX_POLLS)]
    yield polls
    for task in tasks:
        task.cancel()


def read(
    polls: DriverPoller, ray_job: RayJobView, key: JobKey = ("team", "job"), tokens: Any = TOKENS
) -> DriverAnswer | None:
    return polls.latest(key, ray_job, tokens, POLL_SECONDS)


async def follow(polls: DriverPoller, ray_job: RayJobView, seconds: float) -> None:
    """Read the latest answer each second, as reconciles do."""
    for _ in range(int(seconds)):
        read(polls, ray_job)
        await asyncio.sleep(1)


@in_virtual_time
async def test_reconcile_reads_the_last_answer(heads: Heads) -> None:
    heads.seconds = 1.5
    answered_jobs: list[JobKey] = []
    async with polling(heads) as polls:
        polls.answered = answered_jobs.append
        assert read(polls, seen()) is None
        await asyncio.sleep(1)
        assert (read(polls, seen()), answered_jobs) == (None, [])
        await asyncio.sleep(1.5)
        assert (read(polls, seen()), answered_jobs) == (
            REACHED,
            [("team", "job")],
        )


@in_virtual_time
async def test_answering_driver_is_polled_at_the_normal_interval(heads: Heads) -> None:
    async with polling(heads) as polls:
        await follow(polls, seen(), 60)
    assert len(heads.polls) == pytest.approx(60 / POLL_SECONDS, abs=12)


@pytest.mark.parametrize(
    ("seconds", "answer", "longest"), [(1.5, REACHED, MAX_SLOW_BACKOFF), (0.0, SILENT, MAX_BACKOFF)]
)
@in_virtual_time
async def test_slow_or_unreachable_driver_is_polled_with_backoff(
    heads: Heads, seconds: float, answer: DriverAnswer, longest: float
) -> None:
    heads.seconds, heads.answer = seconds, answer
    async with polling(heads) as polls:
        await follow(polls, seen(), 3600)
        assert polls.slow == 1
    pauses = heads.pauses()
    assert pauses[0] == pytest.approx(10, abs=1.1)
    assert pauses[1] == pytest.approx(20, abs=1.1)
    assert pauses[-1] == pytest.approx(longest, abs=1.1)


@in_virtual_time
async def test_driver_is_silent_only_after_several_polls_within_a_minute(heads: Heads) -> None:
    async with polling(heads) as polls:
        await follow(polls, seen(), 10)
        heads.answer = SILENT
        await follow(polls, seen(), 28)
        assert (read(polls, seen()) or SILENT) == REACHED
        await follow(polls, seen(), 30)
        assert (read(polls, seen()) or REACHED) == SILENT


@pytest.mark.parametrize("answer", [REACHED, SILENT], ids=["reached", "silent"])
@pytest.mark.parametrize("ended", [{}, SUCCEEDED], ids=["running", "ended"])
@in_virtual_time
async def test_address_that_changes_before_each_answer_makes_a_driver_silent(
    heads: Heads, answer: DriverAnswer, ended: dict[str, Any]
) -> None:
    """Users write the status of a RayJob. A driver that was never polled stops the deadlines."""
    heads.answer, heads.seconds = answer, 1.5
    answers: list[DriverAnswer | None] = []
    async with polling(heads) as polls:
        for number in range(40):
            address = {"head": {"podIP": f"10.0.0.{number}", "serviceName": "job-1-head-svc"}}
            answers.append(read(polls, seen(**ended | {"rayClusterStatus": address})))
            await asyncio.sleep(1)
    assert answers[:30] == [None] * 30, "as of a driver without an address that changes"
    assert [one and one.reached for one in answers[31:]] == [False] * 9


@in_virtual_time
async def test_head_that_is_replaced_after_a_long_time_is_not_silent_at_once(heads: Heads) -> None:
    async with polling(heads) as polls:
        await follow(polls, seen(), 300)
        heads.seconds = 2.0
        other = seen(rayClusterName="another")
        assert read(polls, other) is None
        await asyncio.sleep(3)
        assert (read(polls, other) or SILENT).reached


@in_virtual_time
async def test_recovered_driver_is_polled_at_the_normal_interval_again(heads: Heads) -> None:
    heads.answer = SILENT
    async with polling(heads) as polls:
        await follow(polls, seen(), 60)
        heads.answer = REACHED
        await follow(polls, seen(), MAX_BACKOFF)
        assert polls.slow == 0
        heads.polls.clear()
        await follow(polls, seen(), 20)
    assert len(heads.polls) >= 6


@in_virtual_time
async def test_ended_ray_job_and_new_head_are_polled_at_once(heads: Heads) -> None:
    heads.answer = SILENT
    async with polling(heads) as polls:
        await follow(polls, seen(), 100)
        heads.answer = REACHED
        for changed in (seen(**SUCCEEDED), replace(seen(), head_ip="10.0.0.8")):
            assert read(polls, changed) is None, "an answer from before says nothing"
            await asyncio.sleep(0.5)
            assert read(polls, changed) == REACHED


@in_virtual_time
async def test_slow_namespace_delays_no_other(heads: Heads) -> None:
    heads.seconds = 2.0
    async with polling(heads) as polls:
        for number in range(200):
            read(polls, seen(f"hostile-{number}"), ("hostile", f"job-{number}"))
        await asyncio.sleep(0.1)
        read(polls, seen("honest"), ("honest", "job"))
        await asyncio.sleep(0.1)
        assert [namespace for _, namespace, _ in heads.polls].count("honest") == 1
        await asyncio.sleep(120)
    assert heads.peak == {
        "hostile": MAX_POLLS_PER_NAMESPACE,
        "honest": 1,
        "all": MAX_POLLS_PER_NAMESPACE + 1,
    }
    assert len(heads.polls) == 201, "all have their turn"


@in_virtual_time
async def test_drivers_that_are_nearly_slow_in_many_namespaces_delay_no_other(heads: Heads) -> None:
    """Drivers that are nearly slow are polled without backoff."""
    heads.seconds, heads.fast = 0.9 * SLOW_SECONDS, "honest"
    hostile = [(f"hostile-{number % 40}", f"job-{number}") for number in range(200)]
    async with polling(heads) as polls:
        for _ in range(30):
            for key in hostile:
                read(polls, seen(key[1]), key)
            read(polls, seen("honest"), ("honest", "job"))
            await asyncio.sleep(1)
    times = [at for at, namespace, _ in heads.polls if namespace == "honest"]
    assert max(after - at for at, after in itertools.pairwise(times)) <= POLL_SECONDS + 1


@in_virtual_time
async def test_polls_are_bounded_over_all_namespaces(heads: Heads) -> None:
    heads.seconds = 2.0
    async with polling(heads) as polls:
        for number in range(3 * MAX_POLLS):
            read(polls, seen(f"uid-{number}"), (f"team-{number}", "job"))
        tracemalloc.start()
        read(polls, seen())
        assert tracemalloc.get_traced_memory()[1] < 8 * 3 * MAX_POLLS, "it has copied all drivers"
        tracemalloc.stop()
        await asyncio.sleep(60)
    assert heads.peak["all"] == MAX_POLLS
    assert len(heads.polls) == 3 * MAX_POLLS + 1


@in_virtual_time
async def test_token_of_the_previous_key_is_tried_and_remembered(heads: Heads) -> None:
    heads.right_token = "old"
    async with polling(heads) as polls:
        read(polls, seen(), tokens=("new", "old"))
        await asyncio.sleep(0.1)
        assert read(polls, seen(), tokens=("new", "old")) == REACHED
        await asyncio.sleep(5)
        polls.stop(("team", "job"), seen(), ("new", "old"))
        await asyncio.sleep(1)
    assert [token for _, _, token in heads.polls] == ["new", "old", "old"]
    assert heads.stopped == ["old"]


@in_virtual_time
async def test_rejected_token_is_logged_once_as_a_warning(
    heads: Heads, caplog: pytest.LogCaptureFixture
) -> None:
    heads.right_token = "another"
    with caplog.at_level(logging.INFO):
        async with polling(heads) as polls:
            await follow(polls, seen(), 600)
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "the driver of job-1: rejects the token")
    ]


@in_virtual_time
async def test_unreadable_answer_is_a_problem_of_the_driver(heads: Heads) -> None:
    async def fail(*_: Any) -> DriverAnswer:
        raise RecursionError

    heads.poll = fail  # type: ignore[method-assign]
    async with polling(heads) as polls:
        await follow(polls, seen(), 100)
        answer = read(polls, seen())
    assert answer is not None
    assert (answer.reached, answer.problem) == (False, "its answer cannot be read")


@in_virtual_time
async def test_old_answer_is_not_used(heads: Heads) -> None:
    async with polling(heads) as polls:
        await follow(polls, seen(), 10)
        heads.seconds = 2 * MAX_AGE_SECONDS
        await follow(polls, seen(), MAX_AGE_SECONDS - 10)
        assert read(polls, seen()) == REACHED
        await asyncio.sleep(20)
        assert not (read(polls, seen()) or REACHED).reached


@in_virtual_time
async def test_old_refusal_remains_a_refusal(heads: Heads) -> None:
    heads.right_token = "another-token"
    async with polling(heads) as polls:
        await follow(polls, seen(), 10)
        refusal = read(polls, seen())
        heads.seconds = 2 * MAX_AGE_SECONDS
        await follow(polls, seen(), MAX_AGE_SECONDS + 100)
        assert refusal is not None
        assert refusal.unauthorized
        assert read(polls, seen()) == refusal


@in_virtual_time
async def test_poll_in_progress_is_not_a_missed_poll(heads: Heads) -> None:
    heads.answer = SILENT
    async with polling(heads) as polls:
        while len(heads.polls) < SILENT_POLLS - 1:
            await follow(polls, seen(), 1)
        heads.seconds = SILENT_SECONDS
        while len(heads.polls) < SILENT_POLLS:
            await follow(polls, seen(), 1)
        await follow(polls, seen(), SILENT_SECONDS - 2)
        assert read(polls, seen()) is None


@in_virtual_time
async def test_deleted_drivers_are_forgotten(heads: Heads) -> None:
    heads.answer = SILENT
    async with polling(heads) as polls:
        for number in range(20):
            read(polls, seen(f"uid-{number}"))
            await asyncio.sleep(FORGET_SECONDS / 3)
        heads.answer = REACHED
        await asyncio.sleep(FORGET_SECONDS + 1)
        read(polls, seen())
        assert len(polls._states) <= 5
        assert polls.slow == 0


@in_virtual_time
async def test_unreachable_drivers_do_not_delay_a_new_job(harness: Harness) -> None:
    heads = Heads(seconds=2.0, answer=SILENT)
    harness.driver = heads  # type: ignore[assignment]
    names = [f"job-{number}" for number in range(60)]
    async with harness.operator(workers=16):
        for name in names:
            harness.cluster.put(job_body(name, uid=f"uid-of-{name}"))
        await until(lambda: all(harness.cluster.get("RayJob", f"{name}-1") for name in names))
        for name in names:
            harness.cluster.patch("RayJob", f"{name}-1", {"status": RUNNING})
        await asyncio.sleep(120)
        for number in range(10):
            begun = clock()
            harness.cluster.put(job_body(f"fresh-{number}", uid=f"uid-fresh-{number}"))
            await until(lambda: harness.cluster.get("RayJob", f"fresh-{number}-1"))  # noqa: B023
            assert clock() - begun <= 0.25
            await asyncio.sleep(7)


@in_virtual_time
async def test_poll_rate_is_limited_over_all_jobs() -> None:
    limit = 10.0
    few, many = 10, 40
    rates = []
    for count in (few, many):
        harness = Harness()
        async with harness.operator(workers=16) as controller:
            controller.observer.polls_per_second = limit
            for number in range(count):
                name = f"job-{number}"
                harness.cluster.put(job_body(name, uid=f"uid-of-{name}"))
                harness.driver.answers[f"{name}-1"] = REACHED
            await until(lambda: harness.cluster.get("RayJob", f"job-{count - 1}-1"))  # noqa: B023
            for number in range(count):
                harness.cluster.patch("RayJob", f"job-{number}-1", {"status": RUNNING})
            await asyncio.sleep(60)
            before = len(harness.driver.asked)
            await asyncio.sleep(20)
            rates.append((len(harness.driver.asked) - before) / 20)
    assert rates[0] == pytest.approx(few / POLL_SECONDS, rel=0.3)
    assert rates[1] <= limit * 1.2


@in_virtual_time
async def test_restarted_operator_does_not_report_a_driver_as_unreachable(harness: Harness) -> None:
    async with harness.operator():
        kuberay = await harness.run_job()
        await kuberay.answer(DriverAnswer(reached=True, report=report(JobState.RUNNING, rows=7)))
        await asyncio.sleep(100)
    harness.cluster.history.clear()
    async with harness.operator():
        await asyncio.sleep(100)
    reasons = {status["conditions"][0]["reason"] for _, status in harness.cluster.history}
    assert reasons <= {"Running"}


@in_virtual_time
async def test_rejected_token_is_reported_at_once(harness: Harness, messages: Messages) -> None:
    async with harness.recorded_operator():
        kuberay = await harness.run_job()
        problem = "job-1-head-svc:8265 rejects the operator's token (401)"
        await kuberay.answer(DriverAnswer(reached=False, problem=problem, unauthorized=True))
        await until(lambda: harness.reason() == "DriverUnauthorized", 30)
        messages.check(harness.cluster.status()["conditions"][0]["message"])
    types = {event["reason"]: event["type"] for event in harness.cluster.events.values()}
    assert types["DriverUnauthorized"] == "Warning"


@in_virtual_time
async def test_failing_stop_request_does_not_end_the_polling(heads: Heads) -> None:
    async def fail(*_: object) -> None:
        raise ValueError("no such address")

    heads.stop = fail  # type: ignore[method-assign]
    async with polling(heads) as polls:
        for _ in range(MAX_POLLS):
            polls.stop(("team", "job"), seen(), TOKENS)
            await asyncio.sleep(1)
        read(polls, seen("b"))
        await asyncio.sleep(1)
        assert len(heads.polls) == 1


@in_virtual_time
async def test_stop_request_is_sent_with_each_token_until_one_is_accepted(heads: Heads) -> None:
    async with polling(heads) as polls:
        polls.stop(("team", "job"), seen(), ("new", "old"))
        await asyncio.sleep(1)
    assert heads.stopped == ["new", "old"]
