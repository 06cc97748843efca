"""Decides whether a failed request is caused by the row or by the endpoint."""

from __future__ import annotations

from batchinference.pipeline.runtimes.http.errors import (
    BadAnswer,
    EndpointDown,
    RateLimited,
    RequestFailed,
)
from batchinference.pipeline.storage.retry import TryAgain

DOWN_AFTER = 10
"""Number of consecutive failed rows after which the endpoint is considered down."""


class FailureClassifier:
    """The state of an endpoint, from all requests of one replica. Times are event loop times, in
    seconds."""

    def __init__(self) -> None:
        self._answered = float("-inf")
        self._failed_on = 0

    def answered(self, now: float) -> None:
        """Record that the endpoint answered a row, even if it rejected the row."""
        self._answered = now
        self._failed_on = 0

    def answered_since(self, moment: float) -> bool:
        """Return whether the endpoint answered any row since `moment`."""
        return self._answered >= moment

    def verdict(self, error: TryAgain, began: float) -> Exception:
        """Return the exception for a row whose retries are exhausted. `began` is the time of its
        first try.

        RequestFailed fails only the row. EndpointDown ends the job, because continuing would write
        error records for valid rows, and a later attempt may find the endpoint healthy.
        - NoResponse: RequestFailed if the endpoint answered other rows since `began`.
        - BadAnswer: RequestFailed, unless DOWN_AFTER consecutive rows failed.
        - RateLimited: always EndpointDown.
        """
        self._failed_on += 1
        if isinstance(error, BadAnswer):
            blamed = self._failed_on < DOWN_AFTER
        else:
            blamed = not isinstance(error, RateLimited) and self.answered_since(began)
        return RequestFailed(str(error)) if blamed else EndpointDown(str(error))
