"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any


class ApiError(Exception):
    """A request that is refused. The message is for the client."""

    def __init__(
        self, status: HTTPStatus, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        kind = (
            "server_error"
            if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            else "invalid_request_error"
        )
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Return the error for an invalid field of a request."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param)


def not_found(kind: str, name: str) -> ApiError:
    """Return the error for an object that the namespace of the key does not have."""
    return ApiError(HTTPStatus.NOT_FOUND, f"No such {kind}: {name[:128]}", "id")
