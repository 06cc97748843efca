"""When HTTP requests start and how many run at once: limits, Retry-After, backoff and retries."""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from threading import Event
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from aiohttp import web

from batchinference.pipeline.error_classification import is_transient_status
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.concurrent_batches import ConcurrentBatches
from batchinference.pipeline.execution.dataset import BlockCalls
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.http_api import adapter_for
from batchinference.pipeline.runtimes.http_client import Credentials, Endpoint
from batchinference.pipeline.runtimes.http_concurrency import MIN_REJECTED, ConcurrencyLimit, Slots
from batchinference.pipeline.runtimes.http_retry_policy import (
    DOWN_AFTER,
    BadAnswer,
    EndpointDown,
    NoResponse,
    Overloaded,
    RateLimited,
    RateLimiter,
    RequestFailed,
    RequestTimeout,
    Retries,
)
from batchinference.pipeline.runtimes.kinds import load_runtime
from batchinference.pipeline.storage.retry import HTTP, LONGEST_PAUSE, TransientError, retry_after
from batchinference.plan.stages import stages_of
from batchinference.spec.models import HttpModel
from support.documents.http_models import chat
from support.documents.minimal import model_step
from support.documents.parsed import steps_of
from support.operator.virtual_time import clock, in_virtual_time
from support.outputs.batches import good, outcomes
from support.outputs.stages import TOLERANT
from support.servers.scripted_http import served

Request = Callable[[], Awaitable[str]]


def scripted(*outcomes: TransientError | str) -> tuple[Request, list[float]]:
    """Return a request with these outcomes, of which the last repeats, and its start times."""
    began: list[float] = []
    coming = itertools.chain(outcomes, itertools.repeat(outcomes[-1]))

    async def request() -> str:
        began.append(clock())
        outcome = next(coming)
        if isinstance(outcome, str):
            return outcome
        raise outcome

    return request, began


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


async def starts(pace: RateLimiter, count: int) -> list[float]:
    """Return the start times of `count` requests that wait at the same time."""

    async def one() -> float:
        await pace.wait()
        return clock()

    return sorted(await asyncio.gather(*(one() for _ in range(count))))


@in_virtual_time
async def test_requests_start_evenly_spaced_or_at_once() -> None:
    assert await starts(RateLimiter(None), 100) == [0.0] * 100
    assert await starts(RateLimiter(4), 9) == pytest.approx([n / 4 for n in range(9)], abs=0.01)


@in_virtual_time
async def test_unused_time_allows_no_burst() -> None:
    pace = RateLimiter(per_second=2)
    await starts(pace, 1)
    await asyncio.sleep(60)
    assert gaps(await starts(pace, 3)) == pytest.approx([0.5, 0.5], abs=0.01)


@in_virtual_time
async def test_pause_delays_waiting_requests() -> None:
    pace = RateLimiter(per_second=1)
    waiting = asyncio.create_task(starts(pace, 4))
    await asyncio.sleep(1.5)
    pace.pause(10)
    assert await waiting == pytest.approx([0, 1, 11.5, 12.5], abs=0.01)


@in_virtual_time
async def test_backoff_doubles_up_to_a_minute() -> None:
    request, began = scripted(*[NoResponse("no answer")] * 12, "at last")
    assert await Retries(20, RateLimiter(None)).ask(request) == "at last"
    for number, gap in enumerate(gaps(began)):
        longest = min(HTTP.first_wait * 2**number, HTTP.max_wait)
        assert longest / 2 - 0.01 <= gap <= longest + 0.01


@in_virtual_time
async def test_backoff_is_random() -> None:
    retries = Retries(1, RateLimiter(None))
    requests = [scripted(NoResponse("no answer"), "well") for _ in range(20)]
    await asyncio.gather(*(retries.ask(request) for request, _ in requests))
    assert len({round(began[1], 3) for _, began in requests}) > 10


@in_virtual_time
async def test_retry_after_delays_all_requests() -> None:
    pace = RateLimiter(None)
    retries = Retries(1, pace)
    limited, began = scripted(RateLimited("slow down", 30), "well")
    asked = asyncio.create_task(retries.ask(paced(limited, pace)))
    await asyncio.sleep(0.1)
    other, others_began = scripted("well")
    assert await retries.ask(paced(other, pace)) == "well"
    assert await asked == "well"
    assert others_began == pytest.approx([30], abs=0.1)
    assert began == pytest.approx([0, 30], abs=1)


def paced(request: Request, pace: RateLimiter) -> Request:
    async def wait() -> str:
        await pace.wait()
        return await request()

    return wait


@pytest.mark.parametrize(
    ("others", "rejections", "answered"),
    [
        (["no", "well"], 15, True),
        ([*["no"] * 9, "well"], 60, True),
        (["well"], 15, False),
        (["no", "well"], 100, False),
    ],
)
@in_virtual_time
async def test_rate_limited_row_fails_only_if_others_are_limited_less(
    others: list[str], rejections: int, answered: bool
) -> None:
    """`others` are the answers to other rows, in turns, while a row is rejected some times."""
    retries = Retries(8, RateLimiter(None))
    limited = RateLimited("slow down", 1)
    unlucky, began = scripted(*[limited] * rejections, "at last")
    turns = itertools.cycle([limited if one == "no" else one for one in others])

    async def other() -> str:
        if isinstance(turn := next(turns), str):
            return turn
        raise turn

    async def ask_others() -> None:
        while True:
            await retries.ask(other)
            await asyncio.sleep(0.1)

    async def answered_while_asked() -> str:
        await asyncio.sleep(1.5)  # other requests succeed meanwhile
        return await unlucky()

    busy = [asyncio.create_task(ask_others()) for _ in range(10)]
    if answered:
        assert await retries.ask(answered_while_asked) == "at last"
    else:
        with pytest.raises(RequestFailed):
            await retries.ask(answered_while_asked)
        assert len(began) > 8, "a row has its retries"
    for task in busy:
        task.cancel()


@in_virtual_time
async def test_retries_are_counted_and_rate_limiting_fails_no_row() -> None:
    request, began = scripted(NoResponse("no answer"))
    with pytest.raises(ConnectionError, match="no answer"):
        await Retries(3, RateLimiter(None)).ask(request)
    assert len(began) == 4
    limited, _ = scripted(RateLimited("slow down", 1))
    with pytest.raises(ConnectionError, match="slow down"):
        await Retries(2, RateLimiter(None)).ask(limited)


@in_virtual_time
async def test_many_consecutive_bad_answers_fail_the_endpoint() -> None:
    retries = Retries(0, RateLimiter(None))
    bad, _ = scripted(BadAnswer("500"))
    for _ in range(2):
        await retries.ask(scripted("well")[0])
        for _ in range(DOWN_AFTER - 1):
            with pytest.raises(RequestFailed, match="500"):
                await retries.ask(bad)
    with pytest.raises(ConnectionError, match="500"):
        await retries.ask(bad)


def http_date(seconds: float) -> str:
    """Return the HTTP date that is `seconds` from now."""
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


def test_retry_after_is_read_in_seconds_or_as_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    numbers = {"7": 7, " 7 ": 7, "0.5": 0.5, "-3": 0, "soon": None, "": None}
    expected = {**numbers, http_date(-60): 0, http_date(120): 120}
    expected[http_date(0).replace("GMT", "+" + "9" * 20)] = None
    assert {asked: retry_after({"Retry-After": asked}) for asked in expected} == expected
    assert retry_after({}) is None


def test_transient_errors_are_recognized() -> None:
    assert [*filter(is_transient_status, range(600))] == [408, 409, 425, 429, *range(500, 600)]


def tried(*errors: Exception) -> tuple[int, list[float]]:
    """Run a call with these outcomes; return the number of tries and the waits between."""
    coming, waits = iter(errors), list[float]()

    def call() -> None:
        if error := next(coming, None):
            raise error

    with patch("time.sleep", waits.append), suppress(TransientError, ValueError):
        replace(HTTP, attempts=4).call(call)
    return len(waits) + 1, waits


def test_retry_after_sets_the_wait_up_to_a_limit() -> None:
    assert tried(TransientError("later", 300)) == (2, [300])
    _, (wait,) = tried(TransientError("later", 0.01))
    assert wait >= HTTP.first_wait / 2, "Retry-After is a minimum"
    assert tried(TransientError("later", LONGEST_PAUSE))[0] == 2
    assert tried(TransientError("tomorrow", LONGEST_PAUSE + 1)) == (1, [])


SECONDS = 30


def limits_over_time(
    limit: ConcurrencyLimit, rounds: int, *, start: float = 0, capacity: int = 1 << 20
) -> list[int]:
    """Return the limit in each of some rounds, in which as many requests are in flight. Those above
    the capacity are rejected, and so are others in their places."""
    now, result = start, list[int]()
    for _ in range(rounds):
        began, sent = now, limit.value
        result.append(sent)
        for number in range(MIN_REJECTED if sent > capacity else 0):
            limit.record_overload(began, now := began + 0.001 * number)
        now = began + 1
        for _ in range(min(sent, capacity)):
            limit.record_answer(began)
    return result


@pytest.mark.parametrize(
    ("limit", "capacity"), [(16, 8), (64, 8), (64, 1), (16, 15), (200, 33), (1024, 500)]
)
def test_limit_settles_at_what_the_endpoint_takes_at_once(limit: int, capacity: int) -> None:
    result = limits_over_time(ConcurrencyLimit(limit), 1000, capacity=capacity)[50:]
    assert statistics.median(result) == capacity
    assert max(result) <= capacity + 1
    assert sum(value > capacity for value in result) <= 0.02 * len(result)


@pytest.mark.parametrize("limit", [1, 5, 16, 17, 100, 1024])
def test_limit_grows_to_the_maximum(limit: int) -> None:
    result = limits_over_time(ConcurrencyLimit(limit), 10)
    assert result[0] == min(limit, 16)
    assert result[-1] == limit


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
    result = list[int]()
    for _ in range(500):
        began, now = now, now + 1
        result.append(limit.value)
        for _ in range(limit.value):
            if chance.random() < share:
                limit.record_overload(began, now)
            else:
                limit.record_answer(began)
    assert statistics.mean(result[100:]) >= expected


def test_limit_follows_a_changed_capacity() -> None:
    limit = ConcurrencyLimit(64)
    for start, capacity in ((0, 8), (1000, 40), (2000, 4)):
        result = limits_over_time(limit, 400, start=start, capacity=capacity)
        assert abs(result[-1] - capacity) <= 1


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
@in_virtual_time
async def test_busy_endpoint_answers_every_row(
    rejection: Exception, at_once: int, concurrency: int
) -> None:
    rows = [b"%d" % number for number in range(60 * at_once)]
    busy = Busy(at_once, rejection)
    async with opened(busy, concurrency=concurrency) as endpoint:
        assert await asyncio.gather(*map(endpoint.ask, rows)) == rows
    late = [began for began in busy.rejected if began > 20]
    assert len(late) <= 0.1 * len(rows), "requests above the capacity are rare"
    assert clock() < 1.5 * 60 + 20, "the endpoint is busy most of the time"


class Queueing(Busy):
    """An endpoint that computes a row each second, also if nobody waits for it any more."""

    free = 0.0

    async def answer(self, body: bytes) -> Any:
        self.free = max(clock(), self.free) + 1
        wait, longest = self.free - clock(), 300.0
        await asyncio.sleep(min(wait, longest))
        if wait > longest:
            self.rejected.append(clock())
            raise self._rejection
        return body


@in_virtual_time
async def test_endpoint_that_gets_slower_than_the_timeout_answers_every_row() -> None:
    rows = [b"%d" % number for number in range(3000)]
    queueing = Queueing(0, RequestTimeout("no answer in time"))
    async with opened(queueing, concurrency=1024) as endpoint:
        assert await asyncio.gather(*map(endpoint.ask, rows)) == rows
    late = [began for began in queueing.rejected if began > 1500]
    assert len(late) <= 0.1 * len(rows), "it is not made so slow again and again"


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
@in_virtual_time
async def test_endpoint_that_answers_nobody_gets_few_requests(rejection: Exception) -> None:
    busy = Busy(0, rejection)
    async with opened(busy, retries=8) as endpoint:
        asked = [asyncio.create_task(endpoint.ask(b"")) for _ in range(200)]
        await asyncio.sleep(20)
        assert sum(began > 1 for began in busy.began) <= 20 / HTTP.first_wait
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


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
@in_virtual_time
async def test_rows_that_waited_while_others_were_answered_do_not_fail(error: Exception) -> None:
    async with opened(DownAfter(20, error), concurrency=4, retries=2) as endpoint:
        results = await asyncio.gather(
            *(endpoint.ask(b"") for _ in range(60)), return_exceptions=True
        )
    down = [result for result in results if isinstance(result, EndpointDown)]
    assert results.count(b"") == 20
    assert len(down) >= 40 - 4, "only rows that were in flight at the last answer may fail"


@pytest.mark.parametrize("error", [NoResponse("refused"), RequestFailed("400")])
@in_virtual_time
async def test_other_errors_do_not_change_the_limit(error: Exception) -> None:
    busy = Busy(0, error)
    async with opened(busy, retries=0) as endpoint:
        for count in (1, 2):
            made = [endpoint.ask(b"") for _ in range(16)]
            await asyncio.gather(*made, return_exceptions=True)
            assert len(set(busy.began)) == count, "all requests begin at once"
            await asyncio.sleep(1)


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


async def test_stop_keeps_the_answered_rows_of_a_batch() -> None:
    """The endpoint answers all rows of a batch but two, of which one waits for its retry."""
    stopping, stopped = Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        row = int(json.loads(await request.text())["messages"][0]["content"])
        if row == 2:
            stopping.set()
            await stopped.wait()
        if row == 3:
            return web.json_response({}, status=503)
        return web.json_response({"choices": [{"message": {"content": str(row)}}]})

    async with served(answer) as server:
        try:
            made = await asyncio.to_thread(answers, server.url, 6, stopping=stopping, batchSize=6)
        finally:
            stopped.set()
    assert made == ["0", "1", "4", "5"]


@pytest.mark.parametrize(
    ("status", "message"), [(401, "answered 401: no"), (503, "cannot continue: .*503: no")]
)
async def test_rows_that_are_answered_before_an_endpoint_fails_are_kept(
    status: int, message: str
) -> None:
    """The endpoint refuses the last row of a batch, whose first row has an invalid answer."""
    asked = list[str]()

    async def answer(request: web.Request) -> web.Response:
        (*_, last) = json.loads(await request.text())["messages"]
        asked.append(last["content"])
        if last["content"] == "4":
            return web.Response(text="no", status=status)
        text = "null" if last["content"] == "0" else "1"
        return web.json_response({"choices": [{"message": {"content": text}}]})

    parts = list[RowBatch]()
    fields = {"concurrency": 1, "retries": 0, "repair": 2, "schema": {"jsonSchema": {"const": 1}}}
    async with served(answer) as server:
        run, block = concurrent_batches(server.url, 5, model=fields, batchSize=5)
        with pytest.raises(JobFailure, match=message):
            await asyncio.to_thread(lambda: parts.extend(map(decode, run(block))))
    assert outcomes(merged(parts)) == {1: "good", 2: "good", 3: "good"}
    assert asked == ["0", "1", "2", "3", "4"], "no row is asked again"


def test_runtimes_of_a_process_share_the_endpoint_of_a_model() -> None:
    runtimes = [
        load_runtime(HttpModel.model_validate(chat(concurrency=limit)), Device())
        for limit in (4, 4, 5)
    ]
    first, same, other = (runtime._shared for runtime in runtimes)  # type: ignore[attr-defined]
    assert first is same
    assert first is not other


def answers(url: str, rows: int, stopping: Event | None = None, **fields: Any) -> list[str]:
    """Return the answers to the rows of a block, as in an actor with 4 requests at once."""
    run, block = concurrent_batches(url, rows, stopping, model={"concurrency": 4}, **fields)
    done = merged(map(decode, run(block)))
    assert done.errors.num_rows == 0
    return list(done.table["answer"].to_pylist())


def concurrent_batches(
    url: str, rows: int, stopping: Event | None = None, *, model: dict[str, Any], **fields: Any
) -> tuple[ConcurrentBatches, pa.Table]:
    """Return what runs a model over blocks in an actor, and a block of rows with their numbers."""
    (stage,) = stages_of(steps_of(model_step(model=chat(url=url, **model), **fields)))
    stopping = stopping or Event()
    calls = BlockCalls(stage.name, Segment.of([stage], TOLERANT), stopping)
    texts = pa.table({"text": [str(row) for row in range(rows)]})
    run = ConcurrentBatches(stage, calls, stopping, part_seconds=0.5)
    return run, encode(good(0, 0, texts))
