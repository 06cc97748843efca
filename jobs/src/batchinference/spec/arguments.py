"""Keyword arguments for user code or a library."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

MAX_DEPTH = 32
MAX_BYTES = 65_536
_Values = TypeVar("_Values", dict[str, Any], list[dict[str, Any]])


def _check_json_value(value: Any, depth: int = 0) -> Any:
    """Return the value. Raises PydanticCustomError if JSON cannot represent it.

    A job is sent to a cluster as JSON. YAML also has dates, binary values, numbers as keys and
    lists that contain themselves.
    """
    if depth > MAX_DEPTH:
        raise _error(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise _error("a key must be a text: put it in quotes")
        for child in value.values():
            _check_json_value(child, depth + 1)
    elif isinstance(value, list):
        for child in value:
            _check_json_value(child, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _error("JSON has no such number")
    elif not isinstance(value, str | int | float | None):
        raise _error("JSON has no such value. Write a date in quotes")
    return value


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("argument", "{message}", {"message": message})


def check_json_size(values: _Values) -> _Values:
    """Return the values. Raises PydanticCustomError if they are too large as JSON.

    The operator keeps all jobs in memory, and a CRD cannot limit the size of arbitrary values.
    """
    if (size := len(json.dumps(values))) > MAX_BYTES:
        raise _error(f"at most {MAX_BYTES} bytes as JSON, here are {size}: put them into a file")
    return values


Values = Annotated[
    dict[str, Annotated[Any, AfterValidator(_check_json_value)]], Field(max_length=64)
]
Arguments = Annotated[Values, AfterValidator(check_json_size)]


def texts_in(value: Any) -> Iterator[str]:
    """Yield all strings in nested arguments, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from texts_in(child)


def names_in(value: Any) -> Iterator[str]:
    """Yield all keys in nested arguments."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from names_in(child)
