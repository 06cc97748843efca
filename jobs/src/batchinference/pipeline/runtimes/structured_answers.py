"""Checks answers against the schema of their step, converts them, and asks again for invalid ones.

The failed rows of a job are grouped by the rule that their answers violate. So the first line of an
error has no values of the row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from batchinference.pipeline.declared_types import fitting, name_of, parse_declared, shown
from batchinference.pipeline.error_classification import is_about_the_row
from batchinference.pipeline.exact_json import has_json, load_exact
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.runtimes.prompts import REPAIR, Message
from batchinference.spec.arguments import names_in
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models import HttpModel, TransformersModel, VllmModel
from batchinference.spec.models.answers import AnswerSchema
from batchinference.spec.warnings import WarningName

StructuredModel = HttpModel | TransformersModel | VllmModel
_FENCE = "```"
_RULES = {
    **{"type": "not {}", "enum": "not one of {}", "const": "not {}", "required": "missing"},
    **{"minimum": "less than {}", "exclusiveMinimum": "not greater than {}"},
    **{"maximum": "greater than {}", "exclusiveMaximum": "not less than {}"},
    **{"minLength": "fewer than {} characters", "maxLength": "more than {} characters"},
    **{"minItems": "fewer than {} items", "maxItems": "more than {} items"},
    **{"multipleOf": "no multiple of {}", "pattern": "no match of {}"},
    "additionalProperties": "a field that is not declared",
}
"""What is wrong with a value that violates a rule of JSON Schema."""


class InvalidAnswer(ValueError):
    """An answer that violates the schema of its step. `problem` names the place and the rule, and
    `detail` what a parser says."""

    def __init__(self, text: str, problem: str, detail: str = "") -> None:
        super().__init__("\n".join(filter(None, [problem, detail, f"The answer: {text}"])))
        self.text, self.problem = text, f"{problem} ({detail})" if detail else problem


class AnswerCheck:
    """Converts the answers of a model to values of the type of its schema."""

    def __init__(self, model: StructuredModel, schema: AnswerSchema) -> None:
        self._output, self._kind = model.output, schema.column_type
        self.document = json.dumps(schema.document, ensure_ascii=False)
        exact = json.loads(self.document, parse_float=Decimal)  # as the numbers of answers
        self._validator = Draft202012Validator(exact)
        self._names = frozenset(names_in(exact))
        self._cut = f"cut before its end. {_more_room(model)}"

    def __call__(self, text: str, finish_reason: str | None) -> Any:
        """Return the value in an answer. Raises InvalidAnswer."""
        document = _unfenced(text)
        try:
            value = load_exact(document, parse_constant=_refuse)
        except ValueError as error:
            problem = self._cut if finish_reason == "length" else "not JSON"
            raise InvalidAnswer(text, f"{self._output}: {problem}", str(error)) from None
        if problem := self._violation(value):
            raise InvalidAnswer(text, self._output + problem)
        if has_json(self._kind):
            value = parse_declared(document, self._kind)
        try:
            return _typed(value, self._kind, self._output)
        except ValueError as error:
            raise InvalidAnswer(text, str(error)) from None

    def _violation(self, value: Any) -> str:
        """Return the place and the rule of the schema that a value violates; empty if none."""
        try:
            error = best_match(self._validator.iter_errors(value))
        except RecursionError:
            return ": nested too deep"
        except ArithmeticError:
            return ": a number that is too large to be checked (multipleOf)"
        if error is None:
            return ""
        rule, limit = str(error.validator), error.validator_value
        path = "".join(map(self._key, error.absolute_path))
        if rule == "required":
            path += self._key(next(name for name in limit if name not in error.instance))
        what = _RULES.get(rule, "does not fit").format(
            limit if isinstance(limit, str) else shown(limit)
        )
        return f"{path}: {what} ({rule})"

    def _key(self, key: str | int) -> str:
        """Return a part of a path. The names of fields that the schema does not name are values of
        the row."""
        return "[]" if isinstance(key, int) else f".{key}" if key in self._names else ".*"


def _more_room(model: StructuredModel) -> str:
    """Return how an answer gets room for all of its tokens."""
    names = ("max_completion_tokens", "max_tokens", "max_new_tokens")
    if given := next((name for name in names if name in model.sampling), None):
        return f"Increase sampling.{given}, or ask for shorter answers"
    if isinstance(model, VllmModel):  # the context is full
        return "Shorten the prompt, or ask for shorter answers"
    name = "max_new_tokens" if isinstance(model, TransformersModel) else "max_tokens"
    return f"Set sampling.{name}, or ask for shorter answers"


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no number {constant}")


def _unfenced(text: str) -> str:
    """Return an answer without the fence of Markdown around it, if there is one."""
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        opening, _, rest = text.removesuffix(_FENCE).partition("\n")
        if opening.removeprefix(_FENCE).strip().lower() in ("", "json"):
            return rest
    return text


def _typed(value: Any, kind: ColumnType, path: str) -> Any:
    """Return a value for a column of a type. Raises ValueError with the place of a value that the
    type does not hold as it is."""
    if isinstance(kind, dict) and isinstance(value, dict):
        if value.keys() - kind.keys():
            raise ValueError(f"{path}: {_RULES['additionalProperties']}")
        present = (name for name in kind if name in value)
        return {name: _typed(value[name], kind[name], f"{path}.{name}") for name in present}
    if isinstance(kind, list) and isinstance(value, list):
        return [_typed(element, kind[0], f"{path}[]") for element in value]
    try:
        return fitting(value, kind)
    except (TypeError, ValueError):
        raise ValueError(f"{path}: no value that {name_of(kind)} holds exactly") from None


class StructuredRuntime:
    """Runs a model with a schema. `load` returns the runtime of a model."""

    def __init__(
        self,
        model: StructuredModel,
        schema: AnswerSchema,
        load: Callable[[StructuredModel], Any],
    ) -> None:
        self._model, self._check = model, AnswerCheck(model, schema)
        unused = "about" if model.output == "details" else "details"
        self._runtime = load(model.model_copy(update={"details": model.details or unused}))

    def __call__(self, inputs: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return the value of each row, with `details` a tuple of it and the details, or the error
        of the row."""
        results = self._answers(inputs, range(len(next(iter(inputs.values())))))
        invalid = [row for row, result in enumerate(results) if isinstance(result, InvalidAnswer)]
        for _ in range((self._model.repair or 0) if invalid else 0):
            again = dict(self._repaired(inputs, results, invalid))
            for row, result in again.items():
                results[row] = result
            invalid = [row for row, result in again.items() if isinstance(result, InvalidAnswer)]
        return results

    def _repaired(
        self, inputs: Mapping[str, Sequence[Any]], results: Sequence[Any], rows: Sequence[int]
    ) -> Iterator[tuple[int, Any]]:
        """Ask again for rows with an invalid answer, and yield their new results. Rows for which
        that fails are left out."""
        if not rows:
            return
        part = {name: [values[row] for row in rows] for name, values in inputs.items()}
        part[REPAIR] = [self._turns(results[row]) for row in rows]
        try:
            found = self._answers(part, rows)
        except Exception as error:
            if not is_about_the_row(error):
                raise
            half = len(rows) // 2
            for some in (rows[:half], rows[half:]) if half else ():
                yield from self._repaired(inputs, results, some)
            return
        for row, result in zip(rows, found, strict=True):
            warn(WarningName.ANSWER_REPAIRED, row=row, amount=1)
            if isinstance(result, InvalidAnswer) or not isinstance(result, Exception):
                yield row, result

    def _answers(self, inputs: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> list[Any]:
        """Return the results of a request for rows, and report its warnings. A text that was cut is
        invalid, or it has a whole answer."""
        with collect_warnings() as warnings:
            found = self._runtime(inputs)
        for warning in warnings:
            if warning.name is not WarningName.ANSWER_CUT:
                warn(warning.name, row=rows[warning.row], amount=warning.amount)
        return [*map(self._result, found)]

    def _result(self, result: Any) -> Any:
        if isinstance(result, Exception):
            return result
        text, about = result
        try:
            value = self._check(text, about["finish_reason"])
        except InvalidAnswer as error:
            return error
        return value if self._model.details is None else (value, about)

    def _turns(self, error: InvalidAnswer) -> list[Message]:
        """Return the messages that ask again: the invalid answer, and what is wrong with it."""
        request = (
            f"This answer is invalid: {error.problem}. Answer again, only with JSON that fits this "
            f"JSON Schema: {self._check.document}"
        )
        return [
            {"role": "assistant", "content": error.text},
            {"role": "user", "content": request},
        ]
