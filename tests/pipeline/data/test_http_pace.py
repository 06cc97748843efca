"""When requests begin: evenly spaced, at most so many at a time, and later each time they fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from batchinference.pipeline.endpoint.errors import (
    BadAnswer,
    NoAnswer,
    RequestFailed,
    TooFast,
)
from batchinference.pipeline.endpoint.health import DOWN_AFTER
from batchinference.pipeline.endpoint.pace import Pace
from batchinference.pipeline.endpoint.retries import Retries
from batchinference.pipeline.http_retries import FIRST_WAIT, LONGEST_WAIT, TryAgain
from support.endpoints import ask, chat
from support.http_servers import served
from support.virtual_time import clock, in_leaping_time

Request = Callable[[], Awaitable[str]]


def going(*outcomes: TryAgain | str) -> tuple[Request, list[float]]:
    """A request that comes to these, one after another and the last for ever; and when it began."""
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


async def starts(pace: Pace, count: int) -> list[float]:
    """When so many that wait together may begin."""

    async def one() -> float:
        await pace.wait()
        return clock()

    return sorted(await asyncio.gather(*(one() for _ in range(count))))


@in_leaping_time
async def test_requests_begin_evenly_spaced() -> None:
    times = await starts(Pace(per_second=4), 9)
    assert times == pytest.approx([number / 4 for number in range(9)], abs=0.01)


@in_leaping_time
async def test_time_that_passed_unused_is_not_made_up_for() -> None:
    pace = Pace(per_second=2)
    await starts(pace, 1)
    await asyncio.sleep(60)
    assert gaps(await starts(pace, 3)) == pytest.approx([0.5, 0.5], abs=0.01)


@in_leaping_time
async def test_without_a_limit_all_begin_at_once() -> None:
    assert await starts(Pace(None), 100) == [0.0] * 100


@in_leaping_time
async def test_a_pause_holds_back_those_that_wait_already() -> None:
    pace = Pace(per_second=1)
    waiting = asyncio.create_task(starts(pace, 4))
    await asyncio.sleep(1.5)
    pace.pause(10)
    assert await waiting == pytest.approx([0, 1, 11.5, 12.5], abs=0.01)


@in_leaping_time
async def test_waits_double_up_to_a_minute() -> None:
    request, began = going(*[NoAnswer("nobody")] * 12, "at last")
    assert await Retries(20, Pace(None)).ask(request) == "at last"
    for number, gap in enumerate(gaps(began)):
        longest = min(FIRST_WAIT * 2**number, LONGEST_WAIT)
        assert longest / 2 - 0.01 <= gap <= longest + 0.01


@in_leaping_time
async def test_rows_that_failed_together_come_back_apart() -> None:
    retries = Retries(1, Pace(None))
    requests = [going(NoAnswer("nobody"), "well") for _ in range(20)]
    await asyncio.gather(*(retries.ask(request) for request, _ in requests))
    assert len({round(began[1], 3) for _, began in requests}) > 10


@in_leaping_time
async def test_retries_are_counted() -> None:
    request, began = going(NoAnswer("nobody"))
    with pytest.raises(ConnectionError, match="nobody"):
        await Retries(3, Pace(None)).ask(request)
    assert len(began) == 4


@in_leaping_time
async def test_what_the_endpoint_asks_to_wait_is_waited_by_all() -> None:
    pace = Pace(None)
    retries = Retries(1, pace)
    told, began = going(TooFast("slow down", 30), "well")
    asked = asyncio.create_task(retries.ask(paced(told, pace)))
    await asyncio.sleep(0.1)
    other, others_began = going("well")
    assert await retries.ask(paced(other, pace)) == "well"
    assert await asked == "well"
    assert others_began == pytest.approx([30], abs=0.1)
    assert began == pytest.approx([0, 30], abs=1)


def paced(request: Request, pace: Pace) -> Request:
    async def wait() -> str:
        await pace.wait()
        return await request()

    return wait


@in_leaping_time
async def test_being_told_to_wait_costs_no_try_while_others_get_through() -> None:
    pace = Pace(None)
    retries = Retries(0, pace)
    unlucky, began = going(*[TooFast("slow down", 1)] * 20, "at last")

    async def others() -> None:
        while True:
            await retries.ask(paced(going("well")[0], pace))
            await asyncio.sleep(0.1)

    async def answered_while_asked() -> str:
        await asyncio.sleep(0.2)  # in which others are answered
        return await unlucky()

    busy = asyncio.create_task(others())
    assert await retries.ask(paced(answered_while_asked, pace)) == "at last"
    busy.cancel()
    assert all(gap >= 1 for gap in gaps(began))


@in_leaping_time
async def test_nobody_is_blamed_for_what_comes_too_fast() -> None:
    request, _ = going(TooFast("slow down", 1))
    with pytest.raises(ConnectionError, match="slow down"):
        await Retries(2, Pace(None)).ask(request)


@in_leaping_time
async def test_without_an_answer_a_row_is_blamed_only_if_others_had_theirs() -> None:
    retries = Retries(2, Pace(None))
    bad, _ = going(NoAnswer("nobody"))
    asked = asyncio.create_task(retries.ask(bad))
    await asyncio.sleep(0.1)
    await retries.ask(going("well")[0])
    with pytest.raises(RequestFailed, match="nobody"):
        await asked
    with pytest.raises(ConnectionError, match="nobody"):
        await retries.ask(bad)


@in_leaping_time
async def test_many_bad_answers_one_after_another_are_the_endpoints_fault() -> None:
    retries = Retries(0, Pace(None))
    bad, _ = going(BadAnswer("500"))
    for _ in range(2):
        await retries.ask(going("well")[0])
        for _ in range(DOWN_AFTER - 1):
            with pytest.raises(RequestFailed, match="500"):
                await retries.ask(bad)
    with pytest.raises(ConnectionError, match="500"):
        await retries.ask(bad)


async def test_so_many_requests_are_in_flight_and_no_more() -> None:
    flying = 0
    most: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        nonlocal flying
        flying += 1
        most.append(flying)
        await asyncio.sleep(0.05)
        flying -= 1
        return web.json_response({"choices": [{"message": {"content": "ok"}}]})

    async with served(answer) as server:
        await ask(chat(url=server.url, concurrency=5), question=["x"] * 30)
    assert max(most) == 5
