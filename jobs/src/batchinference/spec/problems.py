"""What is wrong with a specification, said so that its writer can mend it.

pydantic finds the faults; here each becomes a line with the field's path as it stands in the YAML,
the value found there and, for an unknown field, the nearest one that exists.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from batchinference.spec.base import DNS_LABEL, MEMORY, MODULE_PATH

MAX_SHOWN = 60
_PATTERNS = {
    MEMORY: "a quantity of memory such as 512Mi or 8Gi",
    DNS_LABEL: "lower-case letters, digits and '-', beginning with a letter",
    MODULE_PATH: "a callable written as module:name",
}
_SECRET_PARTS = {"env", "constructorArgs", "callArgs", "factoryArgs"}
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

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The faults that pydantic found when it read a document as `model`."""
    return [_problem(details, model) for details in error.errors(include_url=False)]


def _problem(details: ErrorDetails, model: type[BaseModel]) -> Problem:
    words, parent = _resolve(details["loc"], model)
    value = _shown(details["input"], words)
    kind = details["type"]
    context = details.get("ctx", {})
    if kind.startswith("union_tag"):
        words.append(context["discriminator"].strip("'"))
    match kind:
        case "extra_forbidden":
            message = "unknown field" + _nearest(words[-1], _aliases(parent))
        case "missing" | "union_tag_not_found":
            message = "required, but missing"
        case "union_tag_invalid":
            message = _not_one_of(context["tag"], context["expected_tags"])
        case "literal_error":
            message = _not_one_of(details["input"], context["expected"])
        case "string_pattern_mismatch" if context["pattern"] in _PATTERNS:
            message = f"expected {_PATTERNS[context['pattern']]}, got {value}"
        case _ if isinstance(details["input"], dict | list):
            message = details["msg"]
        case _:
            message = f"{details['msg']}, got {value}"
    return Problem(_path(words), message)


def _not_one_of(value: object, expected: str) -> str:
    known = re.findall(r"'([^']*)'", expected)
    return f"'{value}' is not one of {', '.join(known)}" + _nearest(value, known, listed=True)


def _resolve(
    loc: tuple[str | int, ...], model: type[BaseModel]
) -> tuple[list[str | int], type[BaseModel] | None]:
    """pydantic's location without the tags of unions, and the model that holds its last word."""
    words: list[str | int] = []
    current: Any = model
    parent: type[BaseModel] | None = None
    for word in loc:
        current = _without_none(current)
        if tagged := _arm(current, word):
            current = tagged
            continue
        words.append(word)
        parent = current if _is_model(current) else None
        current = _child(current, word)
    return words, parent


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


def _nearest(word: object, known: list[str], *, listed: bool = False) -> str:
    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(word).lower(), folded, n=1, cutoff=0.6)
    if found:
        return f"; did you mean '{folded[found[0]]}'?"
    return f"; there are {', '.join(known)}" if known and not listed else ""


def _path(words: list[str | int]) -> str:
    text = ""
    for word in words:
        text += f"[{word}]" if isinstance(word, int) else f".{word}"
    return text.removeprefix(".")


def _shown(value: object, words: list[str | int]) -> str:
    if _SECRET_PARTS.intersection(map(str, words)):
        return f"a value of type {type(value).__name__} (not shown)"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
