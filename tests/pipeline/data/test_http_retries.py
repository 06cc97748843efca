"""How long an HTTP server is waited for, by seconds or a date, and when it is not asked again."""

from __future__ import annotations

import email.utils
import time

import pytest
import tenacity

from batchinference.pipeline.http_retries import (
    FIRST_WAIT,
    LONGEST_PAUSE,
    TryAgain,
    asked_wait,
    is_passing,
    policy,
)


def at(seconds: float) -> str:
    """The date so many seconds from now, as HTTP writes it."""
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("7", 7), (" 7 ", 7), ("0.5", 0.5), ("-3", 0), (at(-60), 0), ("soon", None), ("", None)],
)
def test_what_a_server_asks_for_in_seconds(asked: str, expected: float | None) -> None:
    assert asked_wait({"Retry-After": asked}) == expected


def test_what_a_server_asks_for_with_a_date() -> None:
    assert asked_wait({"Retry-After": at(120)}) == pytest.approx(120, abs=30)


def test_a_server_that_asks_for_nothing() -> None:
    assert asked_wait({}) is None


def test_what_may_be_answered_otherwise_in_a_moment() -> None:
    passing = [status for status in range(100, 600) if is_passing(status)]
    assert passing == [408, 409, 425, 429, *range(500, 600)]


def tried(*errors: Exception) -> tuple[int, list[float]]:
    """How often a call that comes to these is made, and the waits between."""
    coming, waits = iter(errors), list[float]()

    def call() -> None:
        if error := next(coming, None):
            raise error

    retrying = tenacity.Retrying(**policy(4), sleep=waits.append)
    try:
        retrying(call)
    except (TryAgain, ValueError):
        pass
    return len(waits) + 1, waits


def test_a_try_follows_after_a_wait_that_doubles() -> None:
    tries, waits = tried(*[TryAgain("later")] * 9)
    assert tries == 4
    for number, wait in enumerate(waits):
        assert FIRST_WAIT * 2**number / 2 <= wait <= FIRST_WAIT * 2**number


def test_the_wait_is_as_long_as_asked_for() -> None:
    assert tried(TryAgain("later", 300)) == (2, [300])
    _, (wait,) = tried(TryAgain("later", 0.01))
    assert wait >= FIRST_WAIT / 2, "what is asked for is the least"


def test_who_asks_for_too_much_is_not_asked_again() -> None:
    assert tried(TryAgain("later", LONGEST_PAUSE))[0] == 2
    assert tried(TryAgain("tomorrow", LONGEST_PAUSE + 1)) == (1, [])


def test_another_error_is_not_tried_again() -> None:
    assert tried(ValueError("no")) == (1, [])
