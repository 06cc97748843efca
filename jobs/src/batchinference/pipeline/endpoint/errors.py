"""What can come of a request other than an answer."""

from __future__ import annotations


class RequestFailed(Exception):
    """The endpoint gives this row no answer, while it answers others."""


class TryAgain(Exception):
    """No answer this time. Another try may bring one."""

    wait = 0.0
    """Seconds that the endpoint asked to wait."""


class NoAnswer(TryAgain):
    """Nobody answered, or only a gateway in front of the endpoint. Says nothing about the row."""


class BadAnswer(TryAgain):
    """The endpoint answered, and not as it should: status 500, or what is no JSON."""


class TooFast(TryAgain):
    """The endpoint asks for fewer requests. Says nothing about the row."""

    def __init__(self, message: str, wait: float) -> None:
        super().__init__(message)
        self.wait = wait
