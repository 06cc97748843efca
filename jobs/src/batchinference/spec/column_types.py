"""Parses the types of columns and fields, in the notation of Arrow.

Types are declared for columns of files, partition values and fields of JSON. Examples are `int64`,
`decimal<10, 2>`, `timestamp<UTC>`, `list<TYPE>` and `struct<NAME: TYPE, ...>`. The type `json` is a
text with the JSON of any value.
"""

import re
import zoneinfo
from typing import Annotated, TypeAlias

from pydantic import Field

from batchinference.spec.base import ColumnName, accepted_by, required

MAX_DEPTH = 32
MAX_DIGITS = 76
"""Maximum number of digits of a decimal."""
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
SCALARS = ("bool", *INTEGERS, "float32", "float64", "string", "date", "json")
OTHERS = ("decimal<DIGITS, SCALE>", "timestamp", "timestamp<ZONE>", "list<TYPE>")
"""The other types except structs, as messages list them."""
UNITS = ("s", "ms", "us", "ns")
_SYNONYMS = {
    **dict.fromkeys(("int", "integer", "long", "bigint"), "int64"),
    **dict.fromkeys(("float", "double", "number"), "float64"),
    **dict.fromkeys(("str", "text", "varchar"), "string"),
    **{"boolean": "bool", "datetime": "timestamp", "array": "list<TYPE>", "map": "json"},
    **{"object": "struct<NAME: TYPE>", "any": "json"},
}
"""The types that users mean by names of other languages."""
ColumnType: TypeAlias = "str | list[ColumnType] | dict[str, ColumnType]"
"""A scalar such as `int64`, `decimal<10,2>` or `timestamp<us,UTC>`. A list has its element type as
item, and a struct is a mapping of names to types."""
_TOKEN = re.compile(r'\s*([<>:,]|"[^"]*"|[^\s<>:,]+)')
_OFFSET = re.compile(r"[+-](?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)


def parse_type(text: str) -> ColumnType:
    """Return the type that a text in this notation names. Raises ValueError if it is invalid."""
    tokens = _TOKEN.findall(text)[::-1]
    kind = _type(tokens, 0)
    if tokens:
        raise ValueError(f"'{tokens[-1]}' follows a complete type")
    return kind


def _type(tokens: list[str], depth: int) -> ColumnType:
    """Return the first type in `tokens`, which are in reverse order, and remove its tokens."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    word = _next(tokens)
    if word in SCALARS:
        return word
    if word in ("decimal", "timestamp"):
        return (_decimal if word == "decimal" else _timestamp)(_parameters(tokens))
    if word not in ("list", "struct"):
        raise ValueError(f"there is no type '{word}'. {_fix(word)}")
    _next(tokens, "<")
    kind = [_type(tokens, depth + 1)] if word == "list" else _fields(tokens, depth + 1)
    _next(tokens, ">")
    return kind


def _fix(word: str) -> str:
    base = re.split(r"[(\[]", word.lower())[0]  # such as varchar for varchar(20)
    known = _SYNONYMS.get(base, base)
    if word.lower().startswith(("decimal(", "numeric(", "number(")):
        return "Write it in quotes, such as 'decimal<10, 2>'"
    if known in (*SCALARS, "timestamp") or base in _SYNONYMS:
        return f"Use {known}"
    return f"Use one of {', '.join((*SCALARS, *OTHERS))} and struct<NAME: TYPE>"


def _parameters(tokens: list[str]) -> list[str]:
    """Return the parameters in angle brackets, if there are any, and remove their tokens."""
    if tokens[-1:] != ["<"]:
        return []
    text = ""
    while (token := tokens.pop() if tokens else "") != ">":
        if not token:
            raise ValueError("expected >, found the end")
        text += token
    return text[1:].split(",")


def _decimal(parameters: list[str]) -> str:
    digits, scale = (int(text) if text.isdecimal() else -1 for text in (*parameters, "", "")[:2])
    if len(parameters) != 2 or not 0 <= scale <= digits or not 1 <= digits <= MAX_DIGITS:
        raise ValueError(
            f"a decimal has 1 to {MAX_DIGITS} digits, and its scale is at most their number. Use "
            "for example decimal<10, 2> for 12345678.90"
        )
    return f"decimal<{digits},{scale}>"


def _timestamp(parameters: list[str]) -> str:
    """Return a timestamp type. Its unit is the first parameter, or microseconds by default."""
    unit, zone = "us", parameters
    if parameters and parameters[0] in UNITS:
        unit, *zone = parameters
    if len(zone) > 1 or not all(map(_is_zone, zone)):
        raise ValueError(
            f"there is no time zone '{','.join(zone)}'. Use for example timestamp<UTC>, "
            "timestamp<Europe/Berlin> or timestamp<+01:00>"
        )
    return f"timestamp<{','.join([unit, *zone])}>"


def _is_zone(text: str) -> bool:
    try:
        return bool(_OFFSET.fullmatch(text) or zoneinfo.ZoneInfo(text))
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return False


def _fields(tokens: list[str], depth: int) -> dict[str, ColumnType]:
    fields: dict[str, ColumnType] = {}
    while True:
        name = _next(tokens).strip('"')
        if name in fields:
            raise ValueError(f"field '{name}' is named twice")
        _next(tokens, ":")
        fields[name] = _type(tokens, depth)
        if tokens[-1:] != [","]:
            return fields
        _next(tokens, ",")


def _next(tokens: list[str], expected: str | None = None) -> str:
    """Return the next token, and remove it. Raises ValueError if it is not `expected`. By default,
    any name is expected."""
    text = tokens.pop() if tokens else "the end"
    if text != expected if expected else text in "<>:,":
        raise ValueError(f"expected {expected or 'a name'}, found {text}")
    return text


TimeZone = Annotated[
    str,
    Field(min_length=1, max_length=64),
    required(
        _is_zone, "there is no such time zone. Use a name such as UTC or Europe/Berlin, or +01:00"
    ),
]
TypeText = Annotated[str, Field(min_length=1, max_length=2048), accepted_by(parse_type)]
ColumnTypes = Annotated[dict[ColumnName, TypeText], Field(min_length=1, max_length=256)]
"""Declared types, by column."""


def parse_types(declared: dict[str, str] | None) -> dict[str, ColumnType]:
    """Return the parsed types, by column."""
    return {name: parse_type(text) for name, text in (declared or {}).items()}
