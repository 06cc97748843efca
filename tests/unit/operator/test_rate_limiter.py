"""The rate limit of requests to the API server, a token bucket."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference_operator.kube.rate_limiter import RateLimiter
from support.operator.virtual_time import clock, in_virtual_time, run
from support.tiers import examples


@in_virtual_time
async def test_requests_after_a_burst_are_rate_limited() -> None:
    rate, times = RateLimiter(qps=2, burst=3), []
    for _ in range(6):
        await rate.wait()
        rate.pause(0)  # most responses have no Retry-After
        times.append(clock())
    assert times == [0, 0, 0, 0.5, 1.0, 1.5]
    await asyncio.sleep(98.5)
    for _ in range(3):
        await rate.wait()
    assert clock() == 100, "another burst after a pause"


@in_virtual_time
async def test_pause_delays_all_requests() -> None:
    rate = RateLimiter(qps=100, burst=100)
    rate.pause(7)
    await rate.wait()
    assert 7 <= clock() < 7.1


@in_virtual_time
async def test_waiting_requests_are_served_in_order() -> None:
    rate, order = RateLimiter(qps=1, burst=1), []

    async def take(name: str) -> None:
        await rate.wait()
        order.append(name)

    await asyncio.gather(*(take(name) for name in "abcd"))
    assert order == list("abcd")


@given(
    pauses=st.lists(st.sampled_from([0, 0, 0, 0.01, 0.3, 5]), min_size=1, max_size=80),
    qps=st.integers(1, 50),
    burst=st.integers(1, 20),
)
@settings(max_examples=examples(100), deadline=None)
def test_rate_is_never_exceeded(pauses: list[float], qps: int, burst: int) -> None:
    async def body() -> list[float]:
        rate, times = RateLimiter(qps, burst), []
        for pause in pauses:
            await asyncio.sleep(pause)
            await rate.wait()
            times.append(clock())
        return times

    times = run(body())
    for first, begun in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + qps * (times[last] - begun + 0.002)
