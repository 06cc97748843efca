"""Asking an HTTP server again that could not answer just now: by one rule, whoever asks.

The waits double, half of each left to chance. Where the server says how long to wait, in seconds
or by a date, it is at least as long. One that asks for more than LONGEST_PAUSE is not asked again.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypedDict

import tenacity
from tenacity.retry import retry_base
from tenacity.stop import stop_base

FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0
"""Seconds between the first tries and between late ones. Half of them is left to chance, so that
what failed together does not come back together."""
LONGEST_PAUSE = 900.0
"""Seconds that a server may ask to wait. The job holds all that it has meanwhile."""
_PASSING = frozenset((408, 409, 425, 429))


class TryAgain(Exception):
    """No answer this time. Another try may bring one. `wait` is how many seconds are asked for."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class Policy(TypedDict):
    """Arguments of tenacity's Retrying and AsyncRetrying."""

    stop: stop_base
    wait: Any
    retry: retry_base
    reraise: bool


def policy(tries: int) -> Policy:
    """Up to so many tries of what raises TryAgain, the last of which is raised."""
    return Policy(
        stop=tenacity.stop_after_attempt(tries),
        wait=_wait,
        retry=tenacity.retry_if_exception(_is_worth_it),
        reraise=True,
    )


def is_transient_status(status: int) -> bool:
    """Whether the same request may be answered otherwise in a moment."""
    return status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """The seconds of a Retry-After, which may be a number or a date; None when there is none."""
    asked = headers.get("Retry-After")
    if asked is None:
        return None
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(asked).timestamp() - time.time())
    except ValueError:
        return None


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait if isinstance(error, TryAgain) else 0.0
    half = FIRST_WAIT / 2, LONGEST_WAIT / 2
    usual = tenacity.wait_exponential(*half) + tenacity.wait_random_exponential(*half)
    return max(asked, usual(state))


def _is_worth_it(error: BaseException) -> bool:
    return isinstance(error, TryAgain) and error.wait <= LONGEST_PAUSE
