"""Parses the types of JSON values: `bool`, `int64`, `float64`, `string`, `list<TYPE>` and
`struct<NAME: TYPE, ...>`, in the notation of Arrow."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName

MAX_DEPTH = 32
SCALARS = ("bool", "int64", "float64", "string")
JsonType: TypeAlias = "str | list[JsonType] | dict[str, JsonType]"
"""A scalar, a list with its element type, or the types of the fields of a struct by name."""
_TOKEN = re.compile(r"\s*([<>:,]|[^\s<>:,]+)")


def parse_json_type(text: str) -> JsonType:
    """Return the type in a text. Raises ValueError if it is invalid."""
    tokens = _TOKEN.findall(text)[::-1]
    kind = _type(tokens, 0)
    if tokens:
        raise ValueError(f"'{tokens[-1]}' follows a complete type")
    return kind


def _type(tokens: list[str], depth: int) -> JsonType:
    """Remove the tokens of one type from the end of the reversed tokens, and return the type."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    word = _next(tokens)
    if word in SCALARS:
        return word
    if word not in ("list", "struct"):
        raise ValueError(f"there is no type '{word}', only {', '.join(SCALARS)}, list, struct")
    _next(tokens, "<")
    kind = [_type(tokens, depth + 1)] if word == "list" else _fields(tokens, depth + 1)
    _next(tokens, ">")
    return kind


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


def _next(tokens: list[str], expected: str | None = None) -> str:
    text = tokens.pop() if tokens else "the end"
    if text != expected if expected else text in "<>:,":
        raise ValueError(f"expected {expected or 'a name'}, found {text}")
    return text


def _check_type(text: str) -> str:
    try:
        parse_json_type(text)
    except ValueError as error:
        raise PydanticCustomError("json_type", "{reason}", {"reason": str(error)}) from None
    return text


TypeText = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_check_type)]
JsonSchema = Annotated[dict[ColumnName, TypeText], Field(min_length=1, max_length=256)]
