"""Trying again what storage could not do just now.

The libraries of the object stores try again themselves for a few seconds. What they give up after
that is tried some more here, so that a store that restarts does not end a job.
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
"""Seconds before the second attempt, more or less; each further wait is twice as long."""


class RetryBudget:
    """How often one piece of work may meet trouble that passes."""

    def __init__(self, attempts: int = ATTEMPTS) -> None:
        self._left = attempts - 1
        self._wait = FIRST_WAIT

    def wait_or_raise(self, error: OSError) -> None:
        """Wait a moment. Raises the error when it does not pass, or has come too often."""
        if self._left <= 0 or not is_transient(error):
            raise error
        time.sleep(self._wait * random.uniform(0.5, 1))  # noqa: S311 - no secret
        self._left -= 1
        self._wait *= 2


def with_retries(call: Callable[[], Result]) -> Result:
    """The result of a call that may be made again."""
    patience = RetryBudget()
    while True:
        try:
            return call()
        except OSError as error:
            patience.wait_or_raise(error)
