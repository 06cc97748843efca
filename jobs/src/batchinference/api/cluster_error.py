"""The error of requests to a cluster. Its module does not import the client."""


class ClusterError(Exception):
    """The cluster cannot be reached, or refuses a request. The message is for the user. `status` is
    the HTTP status of the answer; None without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
