"""Whose fault it is that a row has no answer: the row's, or the endpoint's."""

from __future__ import annotations

from batchinference.pipeline.runtimes.http.errors import (
    BadAnswer,
    EndpointDown,
    RateLimited,
    RequestFailed,
)
from batchinference.pipeline.storage.http_retry import TryAgain

DOWN_AFTER = 10
"""So many rows one after another that the endpoint failed on say that it fails on every row."""


class FailureClassifier:
    """What is known of an endpoint, from all that one replica asked it. Times are the loop's."""

    def __init__(self) -> None:
        self._answered = float("-inf")
        self._failed_on = 0

    def answered(self, now: float) -> None:
        """It answered a row, if only to say what is wrong with it."""
        self._answered = now
        self._failed_on = 0

    def answered_since(self, moment: float) -> bool:
        """Whether it answered any row since then."""
        return self._answered >= moment

    def verdict(self, error: TryAgain, began: float) -> Exception:
        """What a row comes to whose tries, the first at `began`, are used up.

        RequestFailed stands for the row alone. EndpointDown ends the job: going on would write
        errors of rows that have none, and another attempt may find the endpoint well.
        - Where nobody answered, the row is to blame if other rows were answered meanwhile.
        - For a bad answer it is, until many rows one after another got nothing better.
        - For what comes too fast, no row is.
        """
        self._failed_on += 1
        if isinstance(error, BadAnswer):
            blamed = self._failed_on < DOWN_AFTER
        else:
            blamed = not isinstance(error, RateLimited) and self.answered_since(began)
        return RequestFailed(str(error)) if blamed else EndpointDown(str(error))
