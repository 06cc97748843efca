"""Retry policies: which errors are retried, how often, and with which backoff.

The backoff doubles with each retry. Half of it is random, so operations that failed together are
not retried together. The libraries of object stores retry for a few seconds. STORAGE adds longer
waits, so a job survives the restart of an object store."""

from __future__ import annotations

import email.utils
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from batchinference.pipeline.error_classification import is_transient
from batchinference.pipeline.errors import redact

Result = TypeVar("Result")
_LOGGER = logging.getLogger(__name__)

ATTEMPTS = 4
"""Maximum number of tries of a storage operation."""
LONGEST_PAUSE = 900.0
"""The longest wait in seconds that a server may ask for. A waiting job occupies resources."""


class TransientError(Exception):
    """A transient error of a request. `wait` is the wait in seconds that the server asks for."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True)
class RetryPolicy:
    """How often an operation is tried (`attempts`), and how long to wait before a retry.

    `first_wait` and `max_wait` are the first and the longest backoff in seconds. No retry begins
    after `max_seconds`. `transient` returns whether an error is retried."""

    attempts: int
    first_wait: float
    transient: Callable[[BaseException], bool]
    max_wait: float = 60.0
    max_seconds: float = float("inf")

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call an idempotent function with retries. Return its result, or raise the last error."""
        begin, tries = time.monotonic(), 0
        while True:
            try:
                return function(*args)
            except Exception as error:
                tries += 1
                wait = self._wait(error, tries)
                too_late = time.monotonic() - begin + wait >= self.max_seconds
                if tries >= self.attempts or too_late or not self.transient(error):
                    raise
                _LOGGER.debug("a request is repeated after an error: %s", redact(str(error)))
            time.sleep(wait)

    def backoff(self, failed: int) -> float:
        """Return the seconds to wait after `failed` failed tries."""
        longest: float = min(self.max_wait, self.first_wait * 2.0 ** min(failed - 1, 32))
        return longest * random.uniform(0.5, 1)  # noqa: S311 - not a secret

    def _wait(self, error: Exception, failed: int) -> float:
        requested = error.wait if isinstance(error, TransientError) else 0.0
        return max(requested, self.backoff(failed))


STORAGE = RetryPolicy(ATTEMPTS, 1.0, is_transient)
HTTP = RetryPolicy(5, 0.5, lambda e: isinstance(e, TransientError) and e.wait <= LONGEST_PAUSE)
"""The policy for HTTP requests. It retries TransientError, except for waits above LONGEST_PAUSE."""


def with_retries(call: Callable[[], Result]) -> Result:
    """Call an idempotent storage operation with retries of transient errors. Return its result."""
    return STORAGE.call(call)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (number or date); None if missing or invalid."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
