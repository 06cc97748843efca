"""Start times of HTTP requests: rate limit, Retry-After, concurrency limit, backoff and retries."""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import tenacity

from batchinference.pipeline.error_classification import is_transient_status
from batchinference.pipeline.runtimes.http_retry_policy import (
    DOWN_AFTER,
    BadAnswer,
    NoResponse,
    RateLimited,
    RateLimiter,
    RequestFailed,
    Retries,
)
from batchinference.pipeline.storage.retry import HTTP, LONGEST_PAUSE, TryAgain, retry_after
from support.operator.virtual_time import clock, in_virtual_time

Request = Callable[[], Awaitable[str]]


def scripted(*outcomes: TryAgain | str) -> tuple[Request, list[float]]:
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
    times = await starts(RateLimiter(per_second=4), 9)
    assert times == pytest.approx([number / 4 for number in range(9)], abs=0.01)


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
        (["no", "no", "no", "no", "no", "no", "no", "no", "no", "well"], 60, True),
        (["well"], 15, False),
        (["no", "well"], 100, False),
    ],
)
def test_rate_limited_row_fails_only_if_others_are_limited_less(
    others: list[str], rejections: int, answered: bool
) -> None:
    """`others` are the answers to other rows, in turns, while a row is rejected some times."""

    @in_virtual_time
    async def run() -> None:
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

    run()


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
async def test_row_without_answer_fails_only_if_others_succeed() -> None:
    retries = Retries(2, RateLimiter(None))
    bad, _ = scripted(NoResponse("no answer"))
    asked = asyncio.create_task(retries.ask(bad))
    await asyncio.sleep(0.1)
    await retries.ask(scripted("well")[0])
    with pytest.raises(RequestFailed, match="no answer"):
        await asked
    with pytest.raises(ConnectionError, match="no answer"):
        await retries.ask(bad)


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
    assert {asked: retry_after({"Retry-After": asked}) for asked in expected} == expected
    assert retry_after({}) is None


def test_transient_errors_are_recognized() -> None:
    passing = [status for status in range(100, 600) if is_transient_status(status)]
    assert passing == [408, 409, 425, 429, *range(500, 600)]


def tried(*errors: Exception) -> tuple[int, list[float]]:
    """Run a call with these outcomes; return the number of tries and the waits between."""
    coming, waits = iter(errors), list[float]()

    def call() -> None:
        if error := next(coming, None):
            raise error

    retrying = tenacity.Retrying(**replace(HTTP, attempts=4).arguments(), sleep=waits.append)
    try:
        retrying(call)
    except (TryAgain, ValueError):
        pass
    return len(waits) + 1, waits


def test_retry_after_sets_the_wait_up_to_a_limit() -> None:
    assert tried(TryAgain("later", 300)) == (2, [300])
    _, (wait,) = tried(TryAgain("later", 0.01))
    assert wait >= HTTP.first_wait / 2, "Retry-After is a minimum"
    assert tried(TryAgain("later", LONGEST_PAUSE))[0] == 2
    assert tried(TryAgain("tomorrow", LONGEST_PAUSE + 1)) == (1, [])
