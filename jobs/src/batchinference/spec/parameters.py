"""Parameters of a job, to which texts of its spec refer as `{{ params.NAME }}`.

References are replaced once, in the parsed document and before it is validated. A value is data: it
cannot add fields, and it is not searched for references. The prefix `params.` distinguishes a
reference from the braces of prompts (`{{` is a literal brace) and of Jinja templates. `${NAME}`
means a dollar sign and a column in a prompt, and Kubernetes replaces `$(NAME)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import PARAMETER_NAME, SpecModel, Text
from batchinference.spec.problems import (
    MAX_PROBLEMS,
    Problem,
    SpecError,
    did_you_mean,
    path_of,
    problems_of,
    raise_for_problems,
)

REPLACED = ("read", "steps", "write", "errors")
"""The fields of the spec in which references are replaced. The platform's policies and the operator
read the other fields as they are."""
VARIABLE_PREFIX = "BATCHINFERENCE_PARAM_"
"""The environment variable with the value of a parameter is this and its name in capitals."""
REFERENCE = re.compile(r"\{\{ *params\.([a-z][a-z0-9_]*) *\}\}")
_INTENDED = re.compile(r"\{\{\s*params\b.{0,40}", re.DOTALL)
_UNPREFIXED = re.compile(r"\{\{ *([a-z][a-z0-9_]*) *\}\}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,2})?", re.ASCII)
_MAX_NESTING = 100
"""Levels of a document below which nothing is replaced. No valid document has as many."""
Value = str | int | float
Words = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""


class Parameter(SpecModel):
    """A parameter. Texts in `read`, `steps`, `write` and `errors` refer to it as
    `{{ params.NAME }}`."""

    name: Annotated[str, Field(pattern=PARAMETER_NAME, max_length=63)]
    """The name."""
    type: Literal["string", "number"] = "string"
    """What the value is. A text that consists of one reference to a number becomes this number."""
    value: Text | None = None
    """The value, as a text. `--set NAME=VALUE`, the environment variable
    `BATCHINFERENCE_PARAM_NAME` and a schedule take precedence. A parameter without any value is an
    error where it is used."""
    description: Text = ""
    """What it is for."""

    @model_validator(mode="after")
    def _check(self) -> Parameter:
        if self.value is not None:
            self.typed(self.value)
        return self

    def typed(self, text: str) -> Value:
        """Return a value of this parameter. Raises PydanticCustomError, which is a ValueError."""
        if _INTENDED.search(text):
            message = "the value of '{name}' contains a reference. Write the value itself"
            raise PydanticCustomError("parameter", message, {"name": self.name})
        if self.type == "string":
            return text
        if not _NUMBER.fullmatch(text):
            message = "the value of '{name}' is no number. Write digits such as 16 or 0.5"
            raise PydanticCustomError("parameter", message, {"name": self.name})
        return int(text) if text.lstrip("-").isdigit() else float(text)


class _Spec(SpecModel):
    parameters: Annotated[list[Parameter], Field(max_length=32)] = []


class _Document(SpecModel):
    spec: _Spec


@dataclass(frozen=True)
class Values:
    """Values of parameters by name, from the command line and from the environment."""

    given: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def of(self, parameter: Parameter) -> str | None:
        """Return the value of a parameter as a text; None if it has none."""
        variable = VARIABLE_PREFIX + parameter.name.upper()
        found = self.given.get(parameter.name, self.environment.get(variable))
        return parameter.value if found is None else found


def substitute(document: dict[str, Any], values: Values) -> dict[str, Any]:
    """Return a document without `spec.parameters`, and with values in the place of references.

    Raises SpecError that names each field with a reference that cannot be replaced.
    """
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return document
    declared = _declared(spec, values)
    inside, outside = _Substitution(declared, values), _Search()
    resolved = {
        name: (inside if name in REPLACED else outside).apply(value, ("spec", name))
        for name, value in spec.items()
        if name != "parameters"
    }
    raise_for_problems([*inside.problems, *outside.problems])
    return {**document, "spec": resolved}


def _declared(spec: dict[str, Any], values: Values) -> dict[str, Parameter]:
    """Return the declared parameters by name. Raises SpecError."""
    try:
        given = {"spec": {"parameters": spec.get("parameters", [])}}
        parameters = _Document.model_validate(given).spec.parameters
    except ValidationError as error:
        raise SpecError(problems_of(error, _Document)) from None
    declared: dict[str, Parameter] = {}
    problems = []
    for index, parameter in enumerate(parameters):
        if parameter.name in declared:
            message = f"two parameters are named '{parameter.name}'. Remove one"
            problems.append(Problem(f"spec.parameters[{index}].name", message))
        declared[parameter.name] = parameter
    for name in values.given:
        if name not in declared:
            near = did_you_mean(name, declared) or "."
            message = f"'{name}' is not declared{near} Add it, or remove --set {name}"
            problems.append(Problem("spec.parameters", message))
    raise_for_problems(problems)
    return declared


class _Search:
    """Finds references in a part of a document where they are not replaced."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._done: dict[int, Any] = {}
        """What lists and mappings have become, by id: YAML aliases may repeat them very often."""

    def apply(self, value: Any, words: Words) -> Any:
        """Return a value of the document, with the problems of its texts recorded."""
        if isinstance(value, str):
            return self.text(value, words) if "{{" in value else value
        if not isinstance(value, dict | list) or len(words) > _MAX_NESTING:
            return value
        if id(value) not in self._done:
            self._done[id(value)] = value  # a list may contain itself
            self._done[id(value)] = self._nested(value, words)
        return self._done[id(value)]

    def _nested(self, value: dict[Any, Any] | list[Any], words: Words) -> Any:
        if isinstance(value, list):
            return [self.apply(child, (*words, index)) for index, child in enumerate(value)]
        for key in value:
            if isinstance(key, str) and _INTENDED.search(key):
                self.report(words, f"a key cannot be a reference ({key}). Write the key itself")
        return {key: self.apply(child, (*words, str(key))) for key, child in value.items()}

    def text(self, text: str, words: Words) -> Value:
        if _INTENDED.search(text):
            replaced = f"references are replaced in {', '.join(REPLACED)} only"
            self.report(words, f"{replaced} ({_shown(text)}). Write the value itself")
        return text

    def report(self, words: Words, message: str) -> None:
        """Record a problem. Raises SpecError if there are more than are described."""
        self.problems.append(Problem(path_of(list(words)), message))
        if len(self.problems) > MAX_PROBLEMS:
            raise SpecError(self.problems)


class _Substitution(_Search):
    """Replaces the references in a part of a document."""

    def __init__(self, declared: Mapping[str, Parameter], values: Values) -> None:
        super().__init__()
        self._declared = declared
        self._values = values

    def text(self, text: str, words: Words) -> Value:
        if whole := REFERENCE.fullmatch(text):
            return self._value(whole[1], words)
        literal = REFERENCE.sub("\0", text)
        for near in _UNPREFIXED.findall(literal):
            if near in self._declared:
                way_out = f"Write '{{{{ params.{near} }}}}', or rename the parameter"
                self.report(words, f"'{{{{ {near} }}}}' is no reference. {way_out}")
        if _INTENDED.search(literal):
            message = "Write {{ params.NAME }}: a lower-case name, without an expression"
            self.report(words, f"'{_shown(literal)}' is no reference. {message}")
        # a function, because a replacement text would have escapes of its own
        return REFERENCE.sub(lambda found: self._written(found[1], words), text)

    def _value(self, name: str, words: Words) -> Value:
        """Return the value of a parameter; an empty text if it has none."""
        parameter = self._declared.get(name)
        if parameter is None:
            near = did_you_mean(name, self._declared) or "."
            declare = f"Add '- name: {name}' to declare it"
            self.report(words, f"'{name}' is not in spec.parameters{near} {declare}")
            return ""
        text = self._values.of(parameter)
        if text is None:
            ways = f"--set {name}=VALUE, {VARIABLE_PREFIX}{name.upper()} or spec.parameters"
            self.report(words, f"the parameter '{name}' has no value. Set it by {ways}")
            return ""
        try:
            return parameter.typed(text)
        except PydanticCustomError as error:
            self.report(words, error.message())
            return ""

    def _written(self, name: str, words: Words) -> str:
        """Return the value of a parameter as it is written in a longer text."""
        self._value(name, words)
        return (self._values.of(self._declared[name]) or "") if name in self._declared else ""


def _shown(text: str) -> str:
    found = _INTENDED.search(text)
    return " ".join((found[0] if found else text).split())
