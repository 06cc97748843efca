"""Replaces references to the parameters of a job, `{{ params.NAME }}`, in the strings of its spec.

References are replaced once, after the document is parsed and before it is validated. So values
cannot add fields. References in values are errors.

The prefix `params.` distinguishes a reference from braces in prompts (`{{` is a literal brace) and
in Jinja templates. A reference is not written `${NAME}`, which may be literal text of a prompt, or
`$(NAME)`, which Kubernetes replaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import USER_CODE_ARGUMENTS
from batchinference.spec.base import PARAMETER_NAME, SpecModel, Text, invalid, keyed
from batchinference.spec.problems import (
    MAX_PROBLEMS,
    Problem,
    SpecError,
    did_you_mean,
    path_of,
    raise_for_problems,
)

REPLACED = ("read", "steps", "write", "errors", "gate")
"""The fields of the spec in which references are replaced. Other fields must not contain
references, because the operator and policies of the platform do not replace references."""
VARIABLE_PREFIX = "BATCHINFERENCE_PARAM_"
"""Prefix of environment variables with values of parameters, before the name in capitals."""
REFERENCE = re.compile(r"\{\{ *params\.([a-z][a-z0-9_]*) *\}\}")
_REFERENCE_BEGINS = r"\{\{\s*params\b"
_INTENDED = re.compile(rf"{_REFERENCE_BEGINS}.{{0,40}}", re.DOTALL)
_UNPREFIXED = re.compile(r"\{\{ *([a-z][a-z0-9_]*) *\}\}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,2})?", re.ASCII)
_MAX_NESTING = 100
"""Maximum depth at which references are replaced. No valid document is nested this deeply."""
Value = str | int | float
Location = tuple[str | int, ...]
"""The path of a value in the document: keys and indexes."""


class Parameter(SpecModel):
    """A parameter, for `{{ params.NAME }}` in `read`, `steps`, `write`, `errors` and `gate`."""

    name: Annotated[str, Field(pattern=PARAMETER_NAME, max_length=63)]
    """The name of the parameter."""
    type: Literal["string", "number"] = "string"
    """The type of the value. A string that is only a reference to a number becomes a number."""
    value: Text | None = None
    """The value, as a string. `--set NAME=VALUE` and the environment variable
    `BATCHINFERENCE_PARAM_NAME` take precedence. A schedule sets parameters such as `date` only if
    they have no value. A reference to a parameter without a value is an error."""
    description: Text = ""
    """The purpose of the parameter."""

    def _check(self) -> None:
        if self.value is not None:
            self.typed(self.value)

    def typed(self, text: str) -> Value:
        """Return a text as a value of the type. Raises a validation error if it is invalid."""
        if _INTENDED.search(text):
            problem = f"the value of '{self.name}' contains a reference"
            raise invalid(f"{problem}. Write the value itself")
        if self.type == "string":
            return text
        if not _NUMBER.fullmatch(text):
            problem = f"the value of '{self.name}' is not a number"
            raise invalid(f"{problem}. Write digits such as 16 or 0.5")
        return int(text) if text.lstrip("-").isdigit() else float(text)


class _Spec(SpecModel):
    parameters: Annotated[list[Parameter], *keyed("name", 32)] = []


class _Document(SpecModel):
    spec: _Spec


@dataclass(frozen=True)
class ParameterValues:
    """Values of parameters by name, from the command line and from the environment."""

    given: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def of(self, parameter: Parameter) -> str | None:
        """Return the value of a parameter as a string; None if the parameter has none."""
        variable = VARIABLE_PREFIX + parameter.name.upper()
        value = self.given.get(parameter.name, self.environment.get(variable))
        return parameter.value if value is None else value


def substitute(document: dict[str, Any], values: ParameterValues) -> dict[str, Any]:
    """Return a document with references replaced by values. `spec.parameters` of the result has the
    values, but not those for arguments of user code, which may be secret.

    Raises SpecError for invalid parameters, or with each field whose reference cannot be replaced.
    """
    spec = document.get("spec") if isinstance(document, dict) else None
    if not isinstance(spec, dict):
        return document
    declared = _declared(spec, values)
    substitution, search = _Substitution(declared, values), _Search()
    resolved = {
        name: (substitution if name in REPLACED else search).apply(value, ("spec", name))
        for name, value in spec.items()
        if name != "parameters"
    }
    raise_for_problems([*substitution.problems, *search.problems])
    if declared:
        shown = {name: values.of(one) for name, one in declared.items()}
        shown |= dict.fromkeys(substitution.secret)
        resolved["parameters"] = [
            {"name": name, "type": declared[name].type}
            | ({} if value is None else {"value": value})
            for name, value in shown.items()
        ]
    return {**document, "spec": resolved}


def _declared(spec: dict[str, Any], values: ParameterValues) -> dict[str, Parameter]:
    """Return declared parameters by name. Raises SpecError if they or names of --set are wrong."""
    try:
        document = {"spec": {"parameters": spec.get("parameters", [])}}
        parameters = _Document.model_validate(document).spec.parameters
    except ValidationError as error:
        from batchinference.spec.validation_messages import problems_of

        raise SpecError(problems_of(error, _Document)) from None
    declared = {parameter.name: parameter for parameter in parameters}
    problems = []
    for name in values.given:
        if name not in declared:
            near = did_you_mean(name, declared) or "."
            message = f"'{name}' is not declared{near} Add it, or remove --set {name}"
            problems.append(Problem("spec.parameters", message))
    raise_for_problems(problems)
    return declared


class _Search:
    """Reports references as problems, for parts of a document in which they are not replaced."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._results: dict[int, Any] = {}
        """The results by the id of a list or mapping, which YAML aliases can repeat often."""

    def apply(self, value: Any, location: Location) -> Any:
        """Return a value with each string replaced by the result of `text`."""
        if isinstance(value, str):
            return self.text(value, location) if "{{" in value else value
        if not isinstance(value, dict | list) or len(location) > _MAX_NESTING:
            return value
        if id(value) not in self._results:
            self._results[id(value)] = value  # ends the recursion if `value` contains itself
            self._results[id(value)] = self._nested(value, location)
        return self._results[id(value)]

    def _nested(self, value: dict[Any, Any] | list[Any], location: Location) -> Any:
        if isinstance(value, list):
            return [self.apply(child, (*location, index)) for index, child in enumerate(value)]
        for key in value:
            if isinstance(key, str) and _INTENDED.search(key):
                self.report(location, f"a key cannot be a reference ({key}). Write the key itself")
        return {key: self.apply(child, (*location, str(key))) for key, child in value.items()}

    def text(self, text: str, location: Location) -> Value:
        if _INTENDED.search(text):
            reason = f"references are replaced in {', '.join(REPLACED)} only"
            self.report(location, f"{reason} ({_excerpt(text)}). Write the value itself")
        return text

    def report(self, location: Location, message: str) -> None:
        """Record a problem. Raises SpecError if there are more than MAX_PROBLEMS."""
        self.problems.append(Problem(path_of(list(location)), message))
        if len(self.problems) > MAX_PROBLEMS:
            raise SpecError(self.problems)


class _Substitution(_Search):
    """Replaces the references in a part of a document, and reports those that it cannot replace."""

    def __init__(self, declared: Mapping[str, Parameter], values: ParameterValues) -> None:
        super().__init__()
        self._declared = declared
        self._values = values
        self.secret: set[str] = set()
        """Names of parameters to which arguments of user code refer."""

    def text(self, text: str, location: Location) -> Value:
        if match := REFERENCE.fullmatch(text):
            return self._value(match[1], location)
        literal = REFERENCE.sub("\0", text)
        for near in _UNPREFIXED.findall(literal):
            if near in self._declared:
                fix = f"Write '{{{{ params.{near} }}}}', or rename the parameter"
                self.report(location, f"'{{{{ {near} }}}}' is not a reference. {fix}")
        if _INTENDED.search(literal):
            fix = "Write {{ params.NAME }}: a lower-case name, without an expression"
            self.report(location, f"'{_excerpt(literal)}' is not a reference. {fix}")
        # a function, because re.sub interprets backslashes in a replacement string
        return REFERENCE.sub(lambda match: self._value_as_text(match[1], location), text)

    def _value(self, name: str, location: Location) -> Value:
        """Return the value of a parameter; if it is invalid, report it and return an empty text."""
        parameter = self._declared.get(name)
        if parameter is None:
            add = "parameters: " if not self._declared else "to parameters: "
            fix = f". Add {add}[{{name: {name}, value: TEXT}}]"
            near = did_you_mean(name, self._declared) or fix
            self.report(location, f"'{name}' is not in spec.parameters{near}")
            return ""
        if USER_CODE_ARGUMENTS.intersection(location):
            self.secret.add(name)
        text = self._values.of(parameter)
        if text is None:
            sources = f"--set {name}=VALUE, {VARIABLE_PREFIX}{name.upper()} or spec.parameters"
            self.report(location, f"the parameter '{name}' has no value. Set it by {sources}")
            return ""
        try:
            return parameter.typed(text)
        except PydanticCustomError as error:
            self.report(location, error.message())
            return ""

    def _value_as_text(self, name: str, location: Location) -> str:
        """Return the value of a parameter as text, for a reference within a longer string."""
        self._value(name, location)
        return (self._values.of(self._declared[name]) or "") if name in self._declared else ""


def _excerpt(text: str) -> str:
    match = _INTENDED.search(text)
    return " ".join((match[0] if match else text).split())
