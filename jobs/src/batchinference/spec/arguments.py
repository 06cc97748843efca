"""Keyword arguments for code of the user's or of a library."""

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


def _portable(value: Any, depth: int = 0) -> Any:
    """A value that JSON can hold: it comes to a cluster as it is on a laptop.

    YAML knows dates, binaries, keys that are numbers and lists that hold themselves as well.
    """
    if depth > MAX_DEPTH:
        raise _error(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise _error("a key must be a text: put it in quotes")
        for child in value.values():
            _portable(child, depth + 1)
    elif isinstance(value, list):
        for child in value:
            _portable(child, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _error("JSON has no such number")
    elif not isinstance(value, str | int | float | None):
        raise _error("JSON has no such value: put a date in quotes")
    return value


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("argument", "{message}", {"message": message})


def small(values: _Values) -> _Values:
    """Return the values. Raises if they are too large as JSON.

    A CRD cannot limit the size of values of any shape, and the operator keeps all jobs in
    memory."""
    if (size := len(json.dumps(values))) > MAX_BYTES:
        raise _error(f"at most {MAX_BYTES} bytes as JSON, here are {size}: put them into a file")
    return values


Values = Annotated[dict[str, Annotated[Any, AfterValidator(_portable)]], Field(max_length=64)]
Arguments = Annotated[Values, AfterValidator(small)]


def texts_in(value: Any) -> Iterator[str]:
    """The texts anywhere in arguments; keys are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from texts_in(child)


def names_in(value: Any) -> Iterator[str]:
    """The keys anywhere in arguments."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from names_in(child)
