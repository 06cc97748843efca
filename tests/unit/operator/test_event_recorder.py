"""The recorder posts Events in the background, and its errors never affect jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference_operator.kube.api_errors import Refused, Unreachable
from batchinference_operator.observability.event_recorder import (
    EVENT_BURST,
    EVENT_QPS,
    MAX_WAITING,
    EventRecorder,
    event_body,
)
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.job_events import Event
from support.operator.fake_cluster import FakeCluster, FakeKubeApi
from support.operator.harness import Harness
from support.operator.objects import OTHER_UID, UID, job_body
from support.operator.virtual_time import BEGINNING, in_virtual_time, wall_clock
from support.tiers import examples

EVENT = Event("AttemptFailed", "Retry", "attempt 1 failed: NodeLost: boom", "Warning")


def job(uid: str = UID) -> JobView:
    return JobView.of(job_body(uid=uid))


class RecorderWithCluster:
    """A recorder, and the cluster to which it posts."""

    def __init__(self) -> None:
        self.cluster, self.metrics, self.calls = FakeCluster(), Metrics(), 0
        self.fault: Exception | None = None
        api = FakeKubeApi(self.cluster, before=self._called)
        self.recorder = EventRecorder(api, self.metrics, wall_clock)

    def _called(self, _: str) -> None:
        self.calls += 1
        if self.fault is not None:
            raise self.fault

    def record(self, event: Event = EVENT, attempt: int = 1) -> None:
        self.recorder.record(job(), attempt, [event])

    def count(self, result: str) -> float:
        return events_total(self.metrics, result)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        work = asyncio.create_task(self.recorder.work())
        yield
        await asyncio.sleep(1)
        work.cancel()


@pytest.fixture
def recorder_with_cluster() -> RecorderWithCluster:
    return RecorderWithCluster()


def events_total(metrics: Metrics, result: str) -> float:
    name = "batchinference_events_total"
    return metrics.registry.get_sample_value(name, {"result": result}) or 0.0


@in_virtual_time
async def test_repeated_event_is_counted_on_the_first(
    recorder_with_cluster: RecorderWithCluster,
) -> None:
    async with recorder_with_cluster.at_work():
        for _ in range(3):
            recorder_with_cluster.record()
    (posted,) = recorder_with_cluster.cluster.events.values()
    assert posted["regarding"]["uid"] == UID
    assert (posted["type"], posted["reason"], posted["action"], posted["note"]) == (
        *("Warning", "AttemptFailed", "Retry"),
        "attempt 1 failed: NodeLost: boom",
    )
    assert posted["eventTime"] == "2026-03-01T12:00:00.000000Z"
    assert posted["count"] == 3
    assert (recorder_with_cluster.count("posted"), recorder_with_cluster.count("repeated")) == (
        1,
        2,
    )


@in_virtual_time
async def test_each_attempt_but_not_each_pod_has_its_own_event(
    recorder_with_cluster: RecorderWithCluster,
) -> None:
    async with recorder_with_cluster.at_work():
        for attempt, pod in ((1, "a"), (1, "b"), (1, "c"), (2, "d")):
            note = f"pod {pod}: 0/5 nodes are available"
            recorder_with_cluster.record(Event("Unschedulable", "Wait", note), attempt)
    assert [event["count"] for event in recorder_with_cluster.cluster.events.values()] == [3, 1]


def test_recreated_job_has_its_own_events() -> None:
    first, second = (event_body(job(uid), 1, EVENT, BEGINNING) for uid in (UID, OTHER_UID))
    assert first["metadata"]["name"] != second["metadata"]["name"]


FAULTS = [Refused("403: forbidden"), Unreachable("reset"), ValueError("odd")]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@in_virtual_time
async def test_rejected_event_is_dropped_and_the_next_is_posted(
    recorder_with_cluster: RecorderWithCluster, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    recorder_with_cluster.fault = fault
    async with recorder_with_cluster.at_work():
        recorder_with_cluster.record()
        await asyncio.sleep(1)
        recorder_with_cluster.fault = None
        recorder_with_cluster.record(Event("Resumed", "Resume", "resumed"))
    assert (recorder_with_cluster.count("dropped"), recorder_with_cluster.count("posted")) == (1, 1)
    (record,) = caplog.records
    assert record.message.partition(":")[0] == "Event AttemptFailed is dropped"


@in_virtual_time
async def test_events_over_the_queue_limit_are_dropped(
    recorder_with_cluster: RecorderWithCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(MAX_WAITING + 5):
            recorder_with_cluster.record()
    assert (recorder_with_cluster.count("dropped"), recorder_with_cluster.calls) == (5, 0)


@in_virtual_time
async def test_event_bursts_are_rate_limited(recorder_with_cluster: RecorderWithCluster) -> None:
    async with recorder_with_cluster.at_work():
        for attempt in range(EVENT_BURST + 100):
            recorder_with_cluster.record(attempt=attempt)
        await asyncio.sleep(1)
        assert recorder_with_cluster.count("posted") == EVENT_BURST + EVENT_QPS
        await asyncio.sleep(100 / EVENT_QPS)
        assert recorder_with_cluster.count("posted") == EVENT_BURST + 100


@given(note=st.text(min_size=1, max_size=3000))
@settings(max_examples=examples(100), deadline=None)
def test_event_stays_within_the_limits_of_the_api_server(note: str) -> None:
    body = event_body(job(), 1, Event("Failed", "Finish", note, "Warning"), BEGINNING)
    assert len(body["note"].encode(errors="surrogatepass")) <= 1024
    assert len(body["metadata"]["name"]) <= 253
    assert len(body["reportingInstance"]) <= 128


@in_virtual_time
async def test_job_runs_without_permission_for_events(harness: Harness) -> None:
    harness.fail_call("post Event", Refused("403: forbidden"))
    async with harness.recorded_operator() as metrics:
        await harness.finish_job()
    assert harness.phase() == "Succeeded"
    assert events_total(metrics, "dropped") == 2


@in_virtual_time
async def test_events_never_contain_the_token(harness: Harness) -> None:
    async with harness.recorded_operator():
        await harness.finish_job()
    posted = [event["reason"] for event in harness.cluster.events.values()]
    assert posted == ["AttemptStarted", "Succeeded"]
    assert harness.token() not in str(harness.cluster.events)


@in_virtual_time
async def test_events_of_one_namespace_do_not_delay_or_drop_those_of_another() -> None:
    cluster, metrics = FakeCluster(), Metrics()
    recorder = EventRecorder(FakeKubeApi(cluster), metrics, wall_clock)
    for number in range(MAX_WAITING + 1000):
        noisy = JobView.of(job_body(f"noisy-{number}", namespace="noisy"))
        recorder.record(noisy, 1, [EVENT])
        if number == MAX_WAITING:
            recorder.record(JobView.of(job_body("quiet", namespace="quiet")), 1, [EVENT])
    assert events_total(metrics, "dropped") == 1001
    work = asyncio.create_task(recorder.work())
    await asyncio.sleep(1)
    work.cancel()
    assert any(name.startswith("quiet.") for name in cluster.events)
