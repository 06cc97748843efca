"""The exceptions for errors of the API server, and the function that raises them."""

from http import HTTPStatus
from typing import Any

TRANSIENT = {429, 500, 502, 503, 504}
"""Status codes of transient errors."""
_TOO_LARGE = "etcdserver: request is too large"
"""A part of the message if etcd refuses an object. In this case, status 500 is not transient."""


class Conflict(Exception):
    """The object has changed since it was read, or a quota was contended. Reconcile again."""


class Refused(Exception):
    """The API server rejected a request, or (`Unreachable`) did not answer. If the difference
    matters, catch `Unreachable` first. The exception has the server's message."""


class Forbidden(Refused):
    """The operator has no permission for the request."""


class Expired(Refused):
    """A watch or a list cannot continue and must start over."""


class Unreachable(Refused):
    """The API server did not respond, or returned a transient error. The server or a component that
    it calls, such as a webhook, is down or overloaded."""


def message_of(answer: Any) -> str:
    """Return the message in an answer of the API server."""
    return str(answer.get("message", "")) if isinstance(answer, dict) else str(answer)


def raise_for(status: int, answer: Any) -> None:
    """Raise the exception for an answer of the API server, if its status is an error."""
    if status < HTTPStatus.BAD_REQUEST:
        return
    if status == HTTPStatus.CONFLICT:
        raise Conflict(message_of(answer))
    kinds: dict[int, type[Refused]] = {HTTPStatus.FORBIDDEN: Forbidden, HTTPStatus.GONE: Expired}
    transient = status in TRANSIENT and _TOO_LARGE not in message_of(answer)
    kind = Unreachable if transient else kinds.get(status, Refused)
    raise kind(f"{status}: {message_of(answer)}")
