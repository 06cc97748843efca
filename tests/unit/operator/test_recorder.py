"""Events are posted apart from the work on jobs, which never suffers from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference_operator.reconcile.model import JobView
from batchinference_operator.runtime.gateway import Refused, Unreachable
from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.recorder import BURST, MAX_WAITING, QPS, Recorder, event_body
from batchinference_operator.status.events import Event
from support.operator.fake_cluster import FakeCluster, FakeGateway
from support.operator.harness import Harness
from support.operator.objects import OTHER_UID, SETTINGS, UID, job_body
from support.operator.virtual_time import BEGINNING, in_virtual_time, wall_clock
from support.tiers import examples

EVENT = Event("AttemptFailed", "Retry", "attempt 1 failed: NodeLost: in its words", "Warning")


def job(uid: str = UID) -> JobView:
    return JobView.of(job_body(uid=uid))


class Desk:
    """A recorder, and the cluster to which it posts."""

    def __init__(self) -> None:
        self.cluster, self.metrics, self.calls = FakeCluster(), Metrics(), 0
        self.fault: Exception | None = None
        gateway = FakeGateway(self.cluster, before=self._called)
        self.recorder = Recorder(gateway, self.metrics, wall_clock)

    def _called(self, _: str) -> None:
        self.calls += 1
        if self.fault is not None:
            raise self.fault

    def count(self, result: str) -> float:
        value = self.metrics.registry.get_sample_value(
            "batchinference_events_total", {"result": result}
        )
        return value or 0.0

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        work = asyncio.create_task(self.recorder.work())
        yield
        await asyncio.sleep(1)
        work.cancel()


@in_virtual_time
async def test_an_event_is_posted_as_the_api_server_wants_it() -> None:
    desk = Desk()
    async with desk.at_work():
        desk.recorder.record(job(), 1, [EVENT])
    (posted,) = desk.cluster.events.values()
    assert posted["regarding"]["uid"] == UID
    assert (posted["type"], posted["reason"], posted["action"], posted["note"]) == (
        *("Warning", "AttemptFailed", "Retry"),
        "attempt 1 failed: NodeLost: in its words",
    )
    assert posted["eventTime"] == "2026-03-01T12:00:00.000000Z"
    assert desk.count("posted") == 1


@in_virtual_time
async def test_repeated_event_is_counted_on_the_first() -> None:
    desk = Desk()
    async with desk.at_work():
        for _ in range(3):
            desk.recorder.record(job(), 1, [EVENT])
    (posted,) = desk.cluster.events.values()
    assert posted["count"] == 3
    assert (desk.count("posted"), desk.count("repeated")) == (1, 2)


@in_virtual_time
async def test_each_attempt_has_events_of_its_own_but_not_each_pod() -> None:
    desk = Desk()
    async with desk.at_work():
        for attempt, pod in ((1, "a"), (1, "b"), (1, "c"), (2, "d")):
            words = f"pod {pod}: 0/5 nodes are available"
            desk.recorder.record(job(), attempt, [Event("Unschedulable", "Wait", words)])
    assert [event["count"] for event in desk.cluster.events.values()] == [3, 1]


def test_another_job_of_the_name_has_events_of_its_own() -> None:
    names = {
        event_body(job(uid), 1, EVENT, BEGINNING)["metadata"]["name"] for uid in (UID, OTHER_UID)
    }
    assert len(names) == 2


FAULTS = [Refused("403: forbidden"), Unreachable("reset"), ValueError("odd")]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@in_virtual_time
async def test_rejected_event_is_dropped_and_the_next_is_posted(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    desk.fault = fault
    async with desk.at_work():
        desk.recorder.record(job(), 1, [EVENT])
        await asyncio.sleep(1)
        desk.fault = None
        desk.recorder.record(job(), 1, [Event("Resumed", "Resume", "it goes on")])
    assert (desk.count("dropped"), desk.count("posted")) == (1, 1)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Event AttemptFailed is dropped"
    ]


@in_virtual_time
async def test_when_too_many_wait_further_ones_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    with caplog.at_level(logging.ERROR):
        for _ in range(MAX_WAITING + 5):
            desk.recorder.record(job(), 1, [EVENT])
    assert desk.count("dropped") == 5
    assert desk.calls == 0


@in_virtual_time
async def test_event_bursts_are_rate_limited() -> None:
    desk = Desk()
    async with desk.at_work():
        many = range(BURST + 100)
        for attempt in many:
            desk.recorder.record(job(), attempt, [EVENT])
        await asyncio.sleep(1)
        assert desk.count("posted") == BURST + QPS
        await asyncio.sleep(100 / QPS)
        assert desk.count("posted") == len(many)


@given(note=st.text(min_size=1, max_size=3000))
@settings(max_examples=examples(100), deadline=None)
def test_any_note_is_one_that_the_api_server_takes(note: str) -> None:
    body = event_body(job(), 1, Event("Failed", "Finish", note, "Warning"), BEGINNING)
    assert len(body["note"].encode(errors="surrogatepass")) <= 1024
    assert len(body["metadata"]["name"]) <= 253
    assert len(body["reportingInstance"]) <= 128


@in_virtual_time
async def test_job_runs_without_permission_for_events() -> None:
    harness = Harness()

    def refuse(call: str) -> None:
        if call == "post Event":
            raise Refused("403: forbidden")

    harness.gateway.before = refuse
    async with harness.recorded_operator() as metrics:
        await harness.finish_job()
    assert harness.phase() == "Succeeded"
    dropped = {"result": "dropped"}
    assert metrics.registry.get_sample_value("batchinference_events_total", dropped) == 2


@in_virtual_time
async def test_the_token_of_a_job_is_in_none_of_its_events() -> None:
    harness = Harness()
    async with harness.recorded_operator():
        await harness.finish_job()
    uid = harness.cluster.objects["BatchInference", "job"]["metadata"]["uid"]
    assert [event["reason"] for event in harness.cluster.events.values()] == [
        "AttemptStarted",
        "Succeeded",
    ]
    assert SETTINGS.token(uid) not in str(harness.cluster.events)
