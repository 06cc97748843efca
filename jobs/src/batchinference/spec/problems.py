"""What is wrong with a specification, said so that its writer can mend it.

pydantic finds the faults; here each becomes a line with the field's path as it stands in the YAML,
the value found there and, for an unknown field, the nearest one that exists.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from batchinference.spec.base import (
    ACCELERATOR,
    CRON,
    DATA_KEY,
    DELIMITER,
    DEVICE_KIND,
    DIRECTORY,
    DNS_LABEL,
    DNS_SUBDOMAIN,
    ENDPOINT,
    ENV_NAME,
    HTTP_URL,
    KUBERNETES_RESOURCE,
    LABEL_VALUE,
    MEMORY,
    MODULE_PATH,
    PARAMETER_NAME,
    SQL_NAME,
    START_VALUE,
    TAINT_KEY,
    TIME_ZONE,
    VARIABLE,
    OptionsModel,
)
from batchinference.spec.databases import DATABASE_URL, TABLE_NAME
from batchinference.spec.durations import PATTERN as DURATION
from batchinference.spec.uris import HIDDEN

MAX_SHOWN = 60
MAX_PROBLEMS = 20
"""Maximum number of problems that are described. The operator parses the documents of all tenants,
and one document may have thousands of problems."""
MAX_COMPARED = 50_000
"""Maximum pairs of characters of a word and the known names that are compared to find the nearest
name. More would take longer than 10 ms."""
CLOSE = 0.7
"""How alike two names are when one is taken for a slip: `gpu` is none of `cpu`."""
_PATTERNS = {
    MEMORY: "a quantity of memory such as 512Mi or 8Gi",
    DNS_LABEL: "lower-case letters, digits and '-', beginning with a letter",
    DURATION: "a duration such as 90s, 30m or 2h30m",
    CRON: "five fields of a crontab such as 30 2 * * MON-FRI",
    TIME_ZONE: "a time zone of the IANA database such as Europe/Berlin",
    PARAMETER_NAME: "lower-case letters, digits and '_', beginning with a letter",
    MODULE_PATH: "a callable written as module:name",
    ENV_NAME: "letters, digits, '_', '-' and '.', not beginning with a digit",
    DIRECTORY: "an absolute path without '.', '..' and ':'",
    DNS_SUBDOMAIN: "a name of Kubernetes: lower-case letters, digits, '-' and '.'",
    DATA_KEY: "letters, digits, '-', '_' and '.'",
    TAINT_KEY: "a taint's key such as pool or example.com/pool",
    LABEL_VALUE: "letters, digits, '-', '_' and '.', a letter or digit at both ends",
    ACCELERATOR: "letters, digits, '-', '_' and '.', a letter or digit at both ends",
    KUBERNETES_RESOURCE: "a resource as its device plugin names it, such as nvidia.com/gpu",
    DEVICE_KIND: "a kind of device as PyTorch names it, such as cuda or npu",
    START_VALUE: "letters, digits and _ . / : , = @ % + -",
    DELIMITER: "one ASCII character or a tab",
    DATABASE_URL: "an address as SQLAlchemy has it, such as sqlite:////data/x.db",
    TABLE_NAME: "the name of a table, or namespace.table",
    HTTP_URL: "an address that begins with http:// or https://",
    VARIABLE: "the name of an environment variable in capitals, such as OPENAI_API_KEY",
    SQL_NAME: "a name of SQL: letters, digits, '_' and '.'",
    ENDPOINT: "an http:// or https:// address without user and password",
}
_TYPE_NAMES = {
    dict: "a mapping",
    list: "a list",
    str: "a text",
    bool: "a boolean",
    int | float: "a number",
    type(None): "null",
}
_FIX = re.compile(r"\. (?:Use|Compare|Write|Set|Rename|Choose) ")
"""The last match in a message is where its fix begins."""
_KEY_MARK = "[key]"
"""pydantic puts it behind a key of a mapping when the key itself is at fault."""
_EXPECTED = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    "string_unicode": "a text of valid Unicode",
    "list_type": "a list",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_pattern_mismatch": "a text that matches '{pattern}'",
}
"""What a field expects, by the type of pydantic's error."""
_SECRET_PARTS = {
    *("env", "storage", "constructorArgs", "callArgs", "factoryArgs"),
    *("url", "catalog", "apiKeyEnv", "headersFrom", "body", "sampling", "engine"),
}
"""Parts of a specification in which people put passwords; values below them are not shown."""


@dataclass(frozen=True)
class Problem:
    """One fault: `path` is where in the document, `message` what is wrong and the way out."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(Exception):
    """A document that is no valid BatchInference; `problems` says all that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Only the first MAX_PROBLEMS are described."""
        self.problems = list(islice(problems, MAX_PROBLEMS + 1))
        if len(self.problems) > MAX_PROBLEMS:
            self.problems[-1] = Problem("", "there are more problems: correct these first")
        super().__init__("\n".join(map(str, self.problems)))


def raise_for_problems(problems: Iterable[Problem]) -> None:
    """Raise SpecError if there are problems. No more are looked for than are described."""
    if found := list(islice(problems, MAX_PROBLEMS + 1)):
        raise SpecError(found)


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterator[Problem]:
    """The faults that pydantic found when it read a document as `model`."""
    return (_problem(details, model) for details in error.errors(include_url=False))


def _problem(details: ErrorDetails, model: type[BaseModel]) -> Problem:
    words, holders = _resolve(details["loc"], model)
    kind = details["type"]
    if kind.startswith("union_tag"):
        words.append(details["ctx"]["discriminator"].strip("'"))
    secret = kind == HIDDEN or not _SECRET_PARTS.isdisjoint(words)
    value = _Value(details["input"], secret)
    if kind == "invalid_key" or (words[-1:] != [_KEY_MARK] == list(details["loc"][-1:])):
        words[-1] = str(details["input"])  # pydantic turns true into 1
        message = f"as a key: {_message(details, value)}"
    elif kind == "extra_forbidden":
        message = _unknown(details["loc"], words, holders)
    elif kind == "union_tag_invalid":
        message = _not_one_of(value.below(words[-1]), details["ctx"]["expected_tags"])
    elif kind == "literal_error":
        message = _not_one_of(value, details["ctx"]["expected"])
    else:
        message = _message(details, value)
    return Problem(path_of(words), message)


def _unknown(
    loc: tuple[str | int, ...], words: list[str | int], holders: list[type[BaseModel] | None]
) -> str:
    parent = holders[-1]
    near = _nearest(loc[-1], _aliases(parent))
    if parent is not None and issubclass(parent, OptionsModel):
        *_, format_, _, option = loc  # read, its format, options, the one at fault
        return f"unknown option '{option}' for {format_}{near}"
    for count in range(len(words) - 2, 0, -1):
        if loc[-1] in _aliases(holders[count]):
            return f"unknown field; it is a field of {path_of(words[:count])}. Move it there"
    return f"unknown field{near}"


def _message(details: ErrorDetails, value: _Value) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return "required, but missing"
    if expected := _PATTERNS.get(context.get("pattern", "")) or _EXPECTED.get(kind):
        return f"expected {_with_numbers(expected, context)}, got {_found(details, value)}"
    if value.nested and not kind.endswith("_type"):
        return details["msg"]
    fix = list(_FIX.finditer(details["msg"]))[-1:]
    end = fix[0].start() if fix else len(details["msg"])
    return f"{details['msg'][:end]}, got {value}{details['msg'][end:]}"


def _with_numbers(expected: str, context: dict[str, Any]) -> str:
    """Return the text with the numbers of the context: no `.0`, and `1 item` in the singular."""
    whole = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in context.items()
    }
    return re.sub(r"\b1 (item|character)s", r"1 \1", expected.format(**whole))


def _found(details: ErrorDetails, value: _Value) -> str:
    """Return the value, or its length if its length is wrong, and how to write it."""
    match details["type"]:
        case "too_long" | "too_short" | "string_too_long":
            return str(len(details["input"]))
        case "string_type" if isinstance(value.value, int | float | dt.date):
            return f"{value}. Put it in quotes, with its unit if it has one"
        case "list_type" if isinstance(value.value, dict):
            return f"{value}. Begin each item with '- '"
        case "list_type":
            return f"{value}. Write the items in brackets: [a, b]"
    return str(value)


@dataclass(frozen=True)
class _Value:
    """A value of the document, as a message may show it."""

    value: Any
    secret: bool

    @property
    def nested(self) -> bool:
        return isinstance(self.value, dict | list)

    def below(self, field: str | int) -> _Value:
        return _Value(self.value.get(field), self.secret)

    def __str__(self) -> str:
        if self.nested:
            return type_name(self.value)
        if self.secret:
            return f"{type_name(self.value)} (not shown)"
        if isinstance(self.value, dt.date):
            return self.value.isoformat()
        if self.value is None or isinstance(self.value, bool):
            return json.dumps(self.value)  # null, true and false, as YAML has them
        return _short(repr(self.value))


def type_name(value: object) -> str:
    """What kind of thing a YAML value is, in words."""
    for kind, name in _TYPE_NAMES.items():
        if isinstance(value, kind):
            return name
    return f"a value of type {type(value).__name__}"


def _not_one_of(value: _Value, expected: str) -> str:
    known = re.findall(r"'([^']*)'", expected)
    near = "" if value.nested else _nearest(value.value, known, listed=True)
    return f"{value} is not one of {', '.join(known)}" + near


def _resolve(
    loc: tuple[str | int, ...], model: type[BaseModel]
) -> tuple[list[str | int], list[type[BaseModel] | None]]:
    """Return pydantic's location without the tags of unions and the mark of a wrong key, and for
    each of its words the model that has it as a field. Numbers count the items of a list."""
    words: list[str | int] = []
    holders: list[type[BaseModel] | None] = []
    current: Any = model
    for word in loc:
        current = _without_none(current)
        if tagged := _arm(current, word):
            current = tagged
            continue
        origin = typing.get_origin(current)
        if word == _KEY_MARK and origin is not dict and not _is_model(current):
            continue
        words.append(word if origin is list else str(word))
        holders.append(current if _is_model(current) else None)
        current = _child(current, word)
    return words, holders


def _child(annotation: Any, word: str | int) -> Any:
    if _is_model(annotation):
        field = _field(annotation, str(word))
        return _annotation(field) if field else None
    arguments = typing.get_args(annotation)
    return _unwrap(arguments[-1]) if arguments else None


def _field(model: type[BaseModel], alias: str) -> FieldInfo | None:
    fields = model.model_fields.items()
    return next((field for name, field in fields if (field.alias or name) == alias), None)


def _annotation(field: FieldInfo) -> Any:
    return _unwrap(field.annotation)


def _unwrap(annotation: Any) -> Any:
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation


def _without_none(annotation: Any) -> Any:
    """X of `X | None`; anything else as it is."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        arms = [_unwrap(arm) for arm in typing.get_args(annotation) if arm is not type(None)]
        if len(arms) == 1:
            return arms[0]
    return annotation


def _arm(annotation: Any, tag: str | int) -> type[BaseModel] | None:
    """The model of a tagged union that carries this tag."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    for arm in map(_unwrap, typing.get_args(annotation)):
        if _is_model(arm) and any(
            tag in typing.get_args(field.annotation) for field in arm.model_fields.values()
        ):
            return typing.cast(type[BaseModel], arm)
    return None


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _aliases(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message about an unknown word: the nearest one there is, where one is near."""
    nearest = _closest(word, list(known), cutoff)
    return f"; did you mean '{nearest}'?" if nearest else ""


def _closest(word: str, known: Collection[str], cutoff: float) -> str | None:
    if len(word) * sum(map(len, known)) > MAX_COMPARED:
        return None
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None)


def _nearest(word: object, known: list[str], *, listed: bool = False) -> str:
    folded = {name.lower(): name for name in known}
    if found := _closest(str(word).lower(), folded.keys(), CLOSE):
        return f"; did you mean '{folded[found]}'?"
    return f". Use one of {', '.join(known)}" if known and not listed else ""


def path_of(words: list[str | int]) -> str:
    """The path of a field as messages show it."""
    text = ""
    for word in words:
        text += f"[{word}]" if isinstance(word, int) else f".{_name(word)}"
    return text.removeprefix(".")


def _name(key: str) -> str:
    """A key as it stands in the document, unless a terminal could not show it."""
    return _short(key if key.isprintable() else repr(key))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
