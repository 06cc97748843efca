"""What can come of a request other than an answer."""

from __future__ import annotations

from batchinference.pipeline.storage.http_retry import TryAgain


class RequestFailed(Exception):
    """The endpoint gives this row no answer, while it answers others."""


class EndpointDown(ConnectionError):
    """The endpoint answers nobody, and was asked for long enough."""


class NoResponse(TryAgain):
    """Nobody answered, or only a gateway in front of the endpoint. Says nothing about the row."""


class BadAnswer(TryAgain):
    """The endpoint answered, and not as it should: status 500, or what is no JSON."""


class RateLimited(TryAgain):
    """The endpoint asks for fewer requests. Says nothing about the row."""
