"""The notation for the types of JSON values: `bool`, `int64`, `float64`, `string`, `list<TYPE>` and
`struct<NAME: TYPE, ...>`, as Arrow prints them."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName

MAX_DEPTH = 32
SCALARS = ("bool", "int64", "float64", "string")
JsonType: TypeAlias = "str | list[JsonType] | dict[str, JsonType]"
"""A scalar, a list with the type of its elements, or the types of a struct's fields by name."""
_TOKEN = re.compile(r"\s*([<>:,]|[^\s<>:,]+)")


def parse_json_type(text: str) -> JsonType:
    """Return the type that a text denotes. Raises ValueError."""
    tokens = _TOKEN.findall(text)[::-1]
    kind = _type(tokens, 0)
    if tokens:
        raise ValueError(f"'{tokens[-1]}' follows a complete type")
    return kind


def _type(tokens: list[str], depth: int) -> JsonType:
    """Return the type at the end of the reversed tokens, which are removed."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    word = _next(tokens)
    if word in SCALARS:
        return word
    if word not in ("list", "struct"):
        raise ValueError(f"there is no type '{word}', only {', '.join(SCALARS)}, list, struct")
    _next(tokens, "<")
    found = [_type(tokens, depth + 1)] if word == "list" else _fields(tokens, depth + 1)
    _next(tokens, ">")
    return found


def _fields(tokens: list[str], depth: int) -> dict[str, JsonType]:
    fields: dict[str, JsonType] = {}
    while True:
        name = _next(tokens)
        if name in fields:
            raise ValueError(f"field '{name}' is named twice")
        _next(tokens, ":")
        fields[name] = _type(tokens, depth)
        if tokens[-1:] != [","]:
            return fields
        _next(tokens, ",")


def _next(tokens: list[str], wanted: str | None = None) -> str:
    found = tokens.pop() if tokens else "the end"
    if found != wanted if wanted else found in "<>:,":
        raise ValueError(f"expected {wanted or 'a name'}, found {found}")
    return found


def _known(text: str) -> str:
    try:
        parse_json_type(text)
    except ValueError as error:
        raise PydanticCustomError("json_type", "{reason}", {"reason": str(error)}) from None
    return text


TypeText = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_known)]
JsonSchema = Annotated[dict[ColumnName, TypeText], Field(min_length=1, max_length=256)]
