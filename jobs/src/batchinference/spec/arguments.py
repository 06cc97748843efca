"""Types and checks of keyword arguments for user code or a library."""

import datetime as dt
import itertools
import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from batchinference.spec.base import invalid

USER_CODE_ARGUMENTS = {"constructorArgs", "callArgs", "factoryArgs"}
"""Fields with arguments of user code, whose values may be secrets. Other fields contain no secrets,
only the names of environment variables with secrets."""
MAX_DEPTH = 32
MAX_BYTES = 65_536
_Values = TypeVar("_Values", dict[str, Any], list[dict[str, Any]])


def check_json_value(value: Any) -> Any:
    """Return the value. Raises a validation error if JSON cannot represent it, or if it is too
    large.

    A job is sent to a cluster as JSON. Unlike YAML, JSON has no dates, binary values, numbers as
    keys or lists that contain themselves. JSON also repeats the value of each YAML alias.
    """
    _check_nested(value, 0, itertools.count(1))
    return value


def _check_nested(value: Any, depth: int, counter: Iterator[int]) -> None:
    """Raise a validation error if JSON cannot represent a value, or if it is too deep or too large.
    `counter` counts all nested values of an argument."""
    if depth > MAX_DEPTH:
        raise invalid(f"nested more than {MAX_DEPTH} levels deep")
    if next(counter) > MAX_BYTES:  # each value is at least a byte of JSON
        raise invalid(f"at most {MAX_BYTES} bytes as JSON. Put them into a file")
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise invalid("a key must be a text. Put it in quotes")
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            _check_nested(child, depth + 1, counter)
    elif isinstance(value, float) and not math.isfinite(value):
        raise invalid("JSON has no such number")
    elif not isinstance(value, str | int | float | None):
        fix = ". Write a date in quotes" if isinstance(value, dt.date) else ""
        raise invalid(f"JSON has no such value{fix}")


def check_json_size(values: _Values) -> _Values:
    """Return the values. Raises a validation error if their JSON is too large for the operator,
    which keeps all jobs in memory. A CRD cannot limit the size of arbitrary values."""
    if (size := len(json.dumps(values))) > MAX_BYTES:
        raise invalid(f"at most {MAX_BYTES} bytes as JSON, here are {size}. Put them into a file")
    return values


JsonObject = Annotated[
    dict[str, Annotated[Any, AfterValidator(check_json_value)]], Field(max_length=64)
]
Arguments = Annotated[JsonObject, AfterValidator(check_json_size)]


def texts_in(value: Any) -> Iterator[str]:
    """Yield all strings in nested arguments, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from texts_in(child)


def fields_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys in nested arguments, with their values."""
    if isinstance(value, dict):
        yield from value.items()
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from fields_in(child)


def names_in(value: Any) -> Iterator[str]:
    """Yield all keys in nested arguments."""
    return (name for name, _ in fields_in(value))
