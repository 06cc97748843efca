"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any


class ApiError(Exception):
    """A request that is refused. The message is for the client."""

    def __init__(
        self, status: HTTPStatus, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> dict[str, Any]:
        ours = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "server_error" if ours else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Return the error for an invalid field of a request."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param=param)


def not_found(kind: str, name: str) -> ApiError:
    """Return the error for a file or batch that the namespace of the key does not have."""
    return ApiError(HTTPStatus.NOT_FOUND, f"No such {kind}: {name[:128]}", param="id")
