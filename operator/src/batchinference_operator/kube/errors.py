"""The errors of requests to the API server."""

from __future__ import annotations


class Conflict(Exception):
    """The object has changed since it was read. The job must be reconciled again."""


class Refused(Exception):
    """A request did not succeed: it was rejected, or (`Unreachable`) not answered.

    If the difference matters, catch `Unreachable` first. The exception has the server's message.
    """


class Forbidden(Refused):
    """The operator has no permission for the request."""


class Expired(Refused):
    """A watch or a list cannot continue and must start over."""


class Invalid(Refused):
    """The API server rejected a field or a value of an object."""


class Unreachable(Refused):
    """The API server did not respond, or returned a transient error.

    It is down or overloaded, or a component that it calls, such as a webhook, does not respond.
    """
