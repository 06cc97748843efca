"""The number of concurrent HTTP requests: batches share it, and it adapts to the endpoint."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web

from batchinference.pipeline.execution.concurrent_batches import concurrent_or_single
from batchinference.pipeline.runtimes import load_runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.http_api import adapter_for
from batchinference.pipeline.runtimes.http_client import Credentials, Endpoint
from batchinference.pipeline.runtimes.http_retry_policy import (
    MIN_REJECTED,
    ConcurrencyLimit,
    EndpointDown,
    NoResponse,
    Overloaded,
    RateLimited,
    RequestFailed,
    Slots,
    TimedOut,
)
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.storage.retry import HTTP
from batchinference.plan.stages import stages_of
from batchinference.spec.models import HttpModel
from support.documents.http_models import chat
from support.documents.minimal import model_step
from support.documents.parsed import steps_of
from support.operator.virtual_time import clock, in_virtual_time
from support.servers.scripted_http import served

SECONDS = 30


def limits_over_time(
    limit: ConcurrencyLimit, rounds: int, *, start: float = 0, capacity: int = 1 << 20
) -> list[int]:
    """Return the limit in each of some rounds, in which as many requests are in flight. Those above
    the capacity are rejected, and so are others in their places."""
    now, found = start, list[int]()
    for _ in range(rounds):
        began, sent = now, limit.value
        found.append(sent)
        for number in range(MIN_REJECTED if sent > capacity else 0):
            limit.record_overload(began, now := began + 0.001 * number)
        now = began + 1
        for _ in range(min(sent, capacity)):
            limit.record_answer(began)
    return found


@pytest.mark.parametrize(
    ("most", "capacity"), [(16, 8), (64, 8), (64, 1), (16, 15), (200, 33), (1024, 500)]
)
def test_limit_settles_at_what_the_endpoint_takes_at_once(most: int, capacity: int) -> None:
    found = limits_over_time(ConcurrencyLimit(most), 1000, capacity=capacity)[50:]
    assert statistics.median(found) == capacity
    assert max(found) <= capacity + 1
    assert sum(value > capacity for value in found) <= 0.02 * len(found)


@pytest.mark.parametrize("most", [1, 5, 16, 17, 100, 1024])
def test_limit_grows_to_the_maximum(most: int) -> None:
    found = limits_over_time(ConcurrencyLimit(most), 10)
    assert found[0] == min(most, 16)
    assert found[-1] == most


def test_limit_is_halved_once_for_all_requests_of_that_time() -> None:
    limit = ConcurrencyLimit(16)
    for began in range(10):
        limit.record_overload(began, 10.0)
    assert limit.value == 8
    for _ in range(MIN_REJECTED):
        limit.record_overload(10.5, 11.0)
    assert limit.value == 4


@pytest.mark.parametrize(("share", "expected"), [(0.001, 14), (0.01, 12), (0.05, 5)])
def test_endpoint_that_rejects_some_requests_at_any_load_keeps_many(
    share: float, expected: int
) -> None:
    """Requests are rejected at random. Without load, each takes a second."""
    chance, limit, now = random.Random(1), ConcurrencyLimit(16), 0.0
    found = list[int]()
    for _ in range(500):
        began, now = now, now + 1
        found.append(limit.value)
        for _ in range(limit.value):
            if chance.random() < share:
                limit.record_overload(began, now)
            else:
                limit.record_answer(began)
    assert statistics.mean(found[100:]) >= expected


def test_limit_follows_a_changed_capacity() -> None:
    limit = ConcurrencyLimit(64)
    for start, capacity in ((0, 8), (1000, 40), (2000, 4)):
        found = limits_over_time(limit, 400, start=start, capacity=capacity)
        assert abs(found[-1] - capacity) <= 1


def test_limit_recovers_soon_after_the_endpoint_answered_nobody() -> None:
    limit = ConcurrencyLimit(16)
    for second in range(4 * MIN_REJECTED):
        limit.record_overload(second, second + 0.5)
    assert limit.value == 1
    assert limits_over_time(limit, 10, start=20)[-1] == 15


@in_virtual_time
async def test_slots_are_given_in_order_and_not_to_cancelled_requests() -> None:
    limit = ConcurrencyLimit(1)
    slots, ended = Slots(limit), list[int]()

    async def use(number: int) -> None:
        async with slots:
            await asyncio.sleep(1)
            ended.append(number)

    tasks = [asyncio.create_task(use(number)) for number in range(5)]
    await asyncio.sleep(0.5)
    tasks[1].cancel()
    await asyncio.sleep(1)
    assert ended == [0]
    tasks[2].cancel()  # it has a slot
    await asyncio.gather(*tasks, return_exceptions=True)
    assert ended == [0, 3, 4]


class Busy:
    """An endpoint that answers some requests at a time, each within a second, and rejects others.
    `began` has the time of each request."""

    def __init__(self, at_once: int, rejection: Exception) -> None:
        self._at_once, self._rejection = at_once, rejection
        self._now = 0
        self.began: list[float] = []
        self.rejected: list[float] = []

    async def answer(self, body: bytes) -> Any:
        self.began.append(clock())
        if self._now == self._at_once:
            await asyncio.sleep(0.001)
            self.rejected.append(clock())
            raise self._rejection
        self._now += 1
        await asyncio.sleep(1)
        self._now -= 1
        return body


@asynccontextmanager
async def opened(busy: Busy, **fields: Any) -> AsyncIterator[Endpoint]:
    model = HttpModel.model_validate(chat(**fields))
    endpoint = Endpoint(model, Credentials(model), adapter_for(model))
    endpoint._post = lambda body, _: busy.answer(body)  # type: ignore[method-assign]
    try:
        yield endpoint
    finally:
        await endpoint.close()


@pytest.mark.parametrize(
    "rejection", [RateLimited("429", 0.5), RateLimited("429"), Overloaded("503")]
)
@pytest.mark.parametrize(("at_once", "concurrency"), [(1, 4), (3, 16), (20, 64)])
def test_busy_endpoint_answers_every_row(
    rejection: Exception, at_once: int, concurrency: int
) -> None:
    rows = [b"%d" % number for number in range(60 * at_once)]

    @in_virtual_time
    async def run() -> None:
        busy = Busy(at_once, rejection)
        async with opened(busy, concurrency=concurrency) as endpoint:
            assert await asyncio.gather(*map(endpoint.ask, rows)) == rows
        late = [began for began in busy.rejected if began > 20]
        assert len(late) <= 0.1 * len(rows), "requests above the capacity are rare"
        assert clock() < 1.5 * 60 + 20, "the endpoint is busy most of the time"

    run()


class Queueing(Busy):
    """An endpoint that computes one row after another, also those that nobody waits for any more.
    Each takes a second."""

    free = 0.0

    async def answer(self, body: bytes) -> Any:
        self.free = max(clock(), self.free) + 1
        wait, longest = self.free - clock(), 300.0
        await asyncio.sleep(min(wait, longest))
        if wait > longest:
            self.rejected.append(clock())
            raise self._rejection
        return body


def test_endpoint_that_gets_slower_than_the_timeout_answers_every_row() -> None:
    rows = [b"%d" % number for number in range(3000)]

    @in_virtual_time
    async def run() -> None:
        queueing = Queueing(0, TimedOut("no answer in time"))
        async with opened(queueing, concurrency=1024) as endpoint:
            assert await asyncio.gather(*map(endpoint.ask, rows)) == rows
        late = [began for began in queueing.rejected if began > 1500]
        assert len(late) <= 0.1 * len(rows), "it is not made so slow again and again"

    run()


class RejectsFirst(Busy):
    """An endpoint that rejects the first request."""

    async def answer(self, body: bytes) -> Any:
        self.began.append(clock())
        if len(self.began) == 1:
            raise self._rejection
        await asyncio.sleep(0.1)
        return body


@in_virtual_time
async def test_rejection_without_a_wait_delays_no_other_request() -> None:
    busy = RejectsFirst(16, RateLimited("429"))
    async with opened(busy) as endpoint:
        await asyncio.gather(*(endpoint.ask(b"") for _ in range(32)))
    *others, again = busy.began
    assert max(others) < HTTP.first_wait / 2 <= again


@pytest.mark.parametrize("rejection", [RateLimited("429"), Overloaded("503")])
def test_endpoint_that_answers_nobody_gets_few_requests(rejection: Exception) -> None:
    @in_virtual_time
    async def run() -> None:
        busy = Busy(0, rejection)
        async with opened(busy, retries=8) as endpoint:
            asked = [asyncio.create_task(endpoint.ask(b"")) for _ in range(200)]
            await asyncio.sleep(20)
            assert sum(began > 1 for began in busy.began) <= 20 / HTTP.first_wait
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    run()


class DownAfter(Busy):
    """An endpoint that answers some rows, and none after them."""

    async def answer(self, body: bytes) -> Any:
        self.began.append(clock())
        answers = len(self.began) <= self._at_once
        await asyncio.sleep(1)
        if not answers:
            raise self._rejection
        return body


@pytest.mark.parametrize("error", [NoResponse("refused"), Overloaded("503")])
def test_rows_that_waited_while_others_were_answered_do_not_fail(error: Exception) -> None:
    @in_virtual_time
    async def run() -> None:
        async with opened(DownAfter(20, error), concurrency=4, retries=2) as endpoint:
            found = await asyncio.gather(
                *(endpoint.ask(b"") for _ in range(60)), return_exceptions=True
            )
        down = [result for result in found if isinstance(result, EndpointDown)]
        assert found.count(b"") == 20
        assert len(down) >= 40 - 4, "only rows that were in flight at the last answer may fail"

    run()


@pytest.mark.parametrize("error", [NoResponse("refused"), RequestFailed("400")])
def test_other_errors_do_not_change_the_limit(error: Exception) -> None:
    @in_virtual_time
    async def run() -> None:
        busy = Busy(0, error)
        async with opened(busy, retries=0) as endpoint:
            for count in (1, 2):
                made = [endpoint.ask(b"") for _ in range(16)]
                await asyncio.gather(*made, return_exceptions=True)
                assert len(set(busy.began)) == count, "all requests begin at once"
                await asyncio.sleep(1)

    run()


async def test_rows_of_other_batches_do_not_wait_for_slow_answers() -> None:
    left, rest_done, in_vain = set(range(60)) - {0, 20, 40}, asyncio.Event(), list[int]()

    async def answer(request: web.Request) -> web.Response:
        row = int(json.loads(await request.text())["messages"][0]["content"])
        left.discard(row)
        if not left:
            rest_done.set()
        if row % 20 == 0:
            try:
                await asyncio.wait_for(rest_done.wait(), SECONDS)
            except TimeoutError:
                in_vain.append(row)
        return web.json_response({"choices": [{"message": {"content": str(row)}}]})

    async with served(answer) as server:
        assert await asyncio.to_thread(answers, server.url, 60) == [str(n) for n in range(60)]
    assert in_vain == []


def test_runtimes_of_a_process_share_the_endpoint_of_a_model() -> None:
    runtimes = [
        load_runtime(HttpModel.model_validate(chat(concurrency=most)), Device())
        for most in (4, 4, 5)
    ]
    first, same, other = (runtime._shared for runtime in runtimes)  # type: ignore[attr-defined]
    assert first is same
    assert first is not other


def answers(url: str, rows: int) -> list[str]:
    """Return the answers to the rows of a block, as in an actor with 4 requests at once."""
    (step,) = steps_of(model_step(model=chat(url=url, concurrency=4)))
    (stage,) = stages_of([step])

    def make() -> Callable[[pa.Table], Any]:
        transform = load_step(step, Device())
        return lambda batch: iter([transform(batch)])

    run = concurrent_or_single(stage, make, Event())
    block = pa.table({"text": [str(row) for row in range(rows)]})
    return [text for table in run(block) for text in table["answer"].to_pylist()]
