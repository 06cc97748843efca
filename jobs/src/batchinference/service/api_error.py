"""Errors in the format of OpenAI's API."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class ApiError(Exception):
    """A request that is refused. The message is for the client."""

    def __init__(
        self, status: HTTPStatus, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        is_ours = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "server_error" if is_ours else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Return the error for an invalid field of a request."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, param)


def parse_request(kind: type[Model], body: bytes | Mapping[str, str]) -> Model:
    """Return the model in a JSON body or in form fields. Raises ApiError for an invalid field."""
    try:
        if isinstance(body, bytes):
            return kind.model_validate_json(body)
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise bad_request(f"{field}: {first['msg']}" if field else first["msg"], field) from None


def not_found(kind: str, name: str) -> ApiError:
    """Return the error for an object that does not exist in the namespace of the API key."""
    return ApiError(HTTPStatus.NOT_FOUND, f"No such {kind}: {name[:128]}", "id")
