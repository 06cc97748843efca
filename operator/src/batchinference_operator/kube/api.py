"""The errors of requests to the API server, and the limits of its lists."""

from __future__ import annotations

POD = "Pod"
PAGE = 10
"""Objects per page of a list. The API server limits the objects of a page but not its size, and an
object may have 1.5 MB. It would ignore the limit for resourceVersion=0. Since Kubernetes 1.34, it
reads pages from its cache."""
MAX_RUNS = 1000
"""Maximum number of objects with the label of a schedule in a list. The history limits allow 200
finished runs. A tenant with more runs must not delay other schedules."""


class Conflict(Exception):
    """The object has changed since it was read. The job must be reconciled again."""


class Refused(Exception):
    """The API server rejected the request. The exception has the server's message."""


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
