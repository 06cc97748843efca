"""Errors of HTTP requests."""

from __future__ import annotations

from batchinference.pipeline.storage.retry import TryAgain


class RequestFailed(Exception):
    """The request of this row failed, but the endpoint answers other rows."""


class EndpointDown(ConnectionError):
    """The endpoint does not answer any row, and the retries are exhausted."""


class NoResponse(TryAgain):
    """No response, or only one from a gateway in front of the endpoint. Not caused by the row."""


class BadAnswer(TryAgain):
    """The endpoint returned an invalid response, such as status 500 or a body that is not JSON."""


class RateLimited(TryAgain):
    """The endpoint asked for fewer requests (rate limit). Not caused by the row."""
