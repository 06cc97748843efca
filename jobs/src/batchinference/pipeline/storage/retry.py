"""Retries storage operations that fail with a transient error.

The libraries of the object stores retry for a few seconds. This module adds longer retries, so that
a job survives the restart of an object store.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from batchinference.pipeline.error_attribution import is_transient

Result = TypeVar("Result")

ATTEMPTS = 4
FIRST_WAIT = 1.0
"""Approximate seconds before the second attempt. Each further wait is twice as long."""


class RetryBudget:
    """The number of transient errors that one operation may have."""

    def __init__(self, attempts: int = ATTEMPTS) -> None:
        self._left = attempts - 1
        self._wait = FIRST_WAIT

    def wait_or_raise(self, error: OSError) -> None:
        """Wait before a retry. Raises the error if it is not transient or no retries are left."""
        if self._left <= 0 or not is_transient(error):
            raise error
        time.sleep(self._wait * random.uniform(0.5, 1))  # noqa: S311 - not a secret
        self._left -= 1
        self._wait *= 2


def with_retries(call: Callable[[], Result]) -> Result:
    """Return the result of a call that can be repeated. Retries transient errors."""
    patience = RetryBudget()
    while True:
        try:
            return call()
        except OSError as error:
            patience.wait_or_raise(error)
