"""The retry policy for all HTTP requests that fail with a transient error.

The backoff doubles with each retry, and half of it is random. A Retry-After header of the server,
in seconds or as a date, is a lower bound for the wait. If a server asks for more than
LONGEST_PAUSE, the request is not retried.
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
"""The first and the longest backoff in seconds. Half of it is random, so that requests that failed
at the same time are not retried at the same time."""
LONGEST_PAUSE = 900.0
"""The longest wait in seconds that a server may ask for. The job holds its resources meanwhile."""
_PASSING = frozenset((408, 409, 425, 429))


class TryAgain(Exception):
    """A transient error of a request. `wait` is the wait in seconds that the server asks for."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class Policy(TypedDict):
    """Arguments for tenacity's Retrying and AsyncRetrying."""

    stop: stop_base
    wait: Any
    retry: retry_base
    reraise: bool


def policy(tries: int) -> Policy:
    """Return a policy with up to `tries` attempts on TryAgain. The last error is raised."""
    return Policy(
        stop=tenacity.stop_after_attempt(tries),
        wait=_wait,
        retry=tenacity.retry_if_exception(_is_worth_it),
        reraise=True,
    )


def is_transient_status(status: int) -> bool:
    """Return whether an HTTP status reports a transient error."""
    return status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date); None if there is none."""
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
