"""Whose fault it is that a row has no answer: the row's, or the endpoint's."""

from __future__ import annotations

import time

from batchinference.pipeline.endpoint.errors import BadAnswer, RequestFailed, TooFast, TryAgain

DOWN_AFTER = 10
"""So many rows one after another that the endpoint failed on say that it fails on every row."""


class Health:
    """What is known of an endpoint, from all that one replica asked."""

    def __init__(self) -> None:
        self._answered = float("-inf")
        self._failed_on = 0

    def answered(self) -> None:
        """It answered a row, if only to say what is wrong with it."""
        self._answered = time.monotonic()
        self._failed_on = 0

    def answered_since(self, moment: float) -> bool:
        """Whether it answered any row since then (of time.monotonic)."""
        return self._answered >= moment

    def verdict(self, error: TryAgain, began: float) -> Exception:
        """What a row comes to whose tries, the first at `began`, are used up.

        RequestFailed stands for the row alone. ConnectionError ends the job: going on would only
        write errors of rows that have none, and another attempt may find the endpoint well.
        - Where nobody answered, it is the row's fault if other rows were answered meanwhile.
        - A bad answer is the row's fault, until many rows after another get nothing better.
        - A row is never to blame for what comes too fast.
        """
        self._failed_on += 1
        if isinstance(error, BadAnswer):
            blamed = self._failed_on < DOWN_AFTER
        else:
            blamed = not isinstance(error, TooFast) and self.answered_since(began)
        return RequestFailed(str(error)) if blamed else ConnectionError(str(error))
