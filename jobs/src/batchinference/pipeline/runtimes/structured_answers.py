"""Checks answers against the schema of their step, converts them, and asks again for invalid ones.

A report groups failed rows by the first line of their error. So this line names the rule that an
answer violates, without values of the row."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from batchinference.pipeline.declared_types import fitting, json_excerpt, name_of, parse_declared
from batchinference.pipeline.error_classification import is_about_the_row
from batchinference.pipeline.exact_json import has_json, load_exact, refuse_constant
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.rows_in_flight import Unanswered
from batchinference.pipeline.runtimes.prompts import REPAIR, Message
from batchinference.spec.arguments import names_in
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models import HttpModel, TransformersModel, VllmModel
from batchinference.spec.models.answer_schema import AnswerSchema
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
"""What is wrong with a value, by the rule of JSON Schema that it violates."""
_ENDS = (*"0123456789", *(f".{digit}" for digit in range(1, 10)), ".000001", "e-9")
"""Ends that are added to a number, to find out whether a longer number is valid, too."""


class InvalidAnswer(ValueError):
    """An answer that violates the schema of its step. `problem` names the field and the rule. If
    the answer is not JSON, `detail` is the message of the parser."""

    def __init__(self, text: str, problem: str, detail: str = "") -> None:
        super().__init__("\n".join(filter(None, [problem, detail, f"The answer: {text}"])))
        self.text, self.problem = text, f"{problem} ({detail})" if detail else problem


class AnswerCheck:
    """Checks answers against a schema, and converts them to the column type of the schema."""

    def __init__(self, model: StructuredModel, schema: AnswerSchema) -> None:
        self._output, self._kind = model.output, schema.column_type
        self.document = json.dumps(schema.document, ensure_ascii=False)
        exact = json.loads(self.document, parse_float=Decimal)  # answers are parsed with Decimals
        self._validator = Draft202012Validator(exact)
        self._names = frozenset(names_in(exact))
        self._cut = f"cut before its end. {_length_advice(model)}"

    def __call__(self, text: str, finish_reason: str | None) -> Any:
        """Return the value of an answer. Raises InvalidAnswer if it violates the schema."""
        document = _unfenced(text)
        try:
            value = load_exact(document, parse_constant=refuse_constant)
        except ValueError as error:
            problem = self._cut if finish_reason == "length" else "not JSON"
            raise InvalidAnswer(text, f"{self._output}: {problem}", str(error)) from None
        if finish_reason == "length" and text[-1].isdigit() and self._may_go_on(document, value):
            raise InvalidAnswer(text, f"{self._output}: {self._cut}")
        if problem := self._violation(value):
            raise InvalidAnswer(text, self._output + problem)
        if has_json(self._kind):
            value = parse_declared(document, self._kind)
        try:
            return _converted(value, self._kind, self._output)
        except ValueError as error:
            raise InvalidAnswer(text, str(error)) from None

    def _may_go_on(self, document: str, value: Any) -> bool:
        """Return whether a longer number with the beginning `document` is valid: 123 for 12."""
        numbers = re.findall(rf"{re.escape(document)}[\d.e+-]+", self.document)
        for text in (*numbers, *(document + end for end in _ENDS)):
            with suppress(ValueError, ArithmeticError, RecursionError):  # for texts such as 01
                if (longer := load_exact(text)) != value and self._validator.is_valid(longer):
                    return True
        return False

    def _violation(self, value: Any) -> str:
        """Return what is wrong with a value, and where, such as `.age: less than 0 (minimum)`.
        Return an empty text if the value fits."""
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
            limit if isinstance(limit, str) else json_excerpt(limit)
        )
        return f"{path}: {what} ({rule})"

    def _key(self, key: str | int) -> str:
        """Return a part of a path. A key that is not in the schema is row data, and becomes `*`."""
        if isinstance(key, int):
            return "[]"
        return f".{key}" if key in self._names else ".*"


def _length_advice(model: StructuredModel) -> str:
    """Return advice for a model whose answers are cut."""
    names = ("max_completion_tokens", "max_tokens", "max_new_tokens")
    if field := next((name for name in names if name in model.sampling), None):
        return f"Increase sampling.{field}, or ask for shorter answers"
    if isinstance(model, VllmModel):  # by default, only its context limits an answer
        return "Shorten the prompt, or ask for shorter answers"
    name = "max_new_tokens" if isinstance(model, TransformersModel) else "max_tokens"
    return f"Set sampling.{name}, or ask for shorter answers"


def _unfenced(text: str) -> str:
    """Return an answer without white space and a Markdown code fence of JSON around it."""
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        opening, _, rest = text.removesuffix(_FENCE).partition("\n")
        if opening.removeprefix(_FENCE).strip().lower() in ("", "json"):
            return rest
    return text


def _converted(value: Any, kind: ColumnType, path: str) -> Any:
    """Return a value converted to a column type. Raises ValueError, with the path of the value, if
    the type cannot hold the value exactly."""
    if isinstance(kind, dict) and isinstance(value, dict):
        if value.keys() - kind.keys():
            raise ValueError(f"{path}: {_RULES['additionalProperties']}")
        present = (name for name in kind if name in value)
        return {name: _converted(value[name], kind[name], f"{path}.{name}") for name in present}
    if isinstance(kind, list) and isinstance(value, list):
        return [_converted(element, kind[0], f"{path}[]") for element in value]
    try:
        return fitting(value, kind)
    except (TypeError, ValueError):
        raise ValueError(f"{path}: no value that {name_of(kind)} holds exactly") from None


class StructuredRuntime:
    """Runs a model whose answers must match a schema. `load` loads the runtime of a model."""

    def __init__(
        self, model: StructuredModel, schema: AnswerSchema, load: Callable[[StructuredModel], Any]
    ) -> None:
        self._model, self._check = model, AnswerCheck(model, schema)
        unused = "about" if model.output == "details" else "details"
        self._runtime = load(model.model_copy(update={"details": model.details or unused}))

    def __call__(self, inputs: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Return the value of the answer to each row. If the model has `details`, return tuples of
        the value and the details. A failed row has its error instead."""
        results = self._answers(inputs, range(len(next(iter(inputs.values())))))
        invalid = [row for row, result in enumerate(results) if isinstance(result, InvalidAnswer)]
        for _ in range((self._model.repair or 0) if invalid else 0):
            repaired = dict(self._ask_again(inputs, results, invalid))
            for row, result in repaired.items():
                results[row] = result
            invalid = [row for row, result in repaired.items() if isinstance(result, InvalidAnswer)]
        return results

    def _ask_again(
        self, inputs: Mapping[str, Sequence[Any]], results: Sequence[Any], rows: Sequence[int]
    ) -> Iterator[tuple[int, Any]]:
        """Ask the model to correct the invalid answers of `rows`, and yield each row with its new
        result. Rows whose request fails are left out, and keep their previous error."""
        if not rows:
            return
        part = {name: [values[row] for row in rows] for name, values in inputs.items()}
        part[REPAIR] = [self._repair_messages(results[row]) for row in rows]
        try:
            answers = self._answers(part, rows)
        except Exception as error:
            if not is_about_the_row(error):
                raise
            half = len(rows) // 2
            for half_of_rows in (rows[:half], rows[half:]) if half else ():
                yield from self._ask_again(inputs, results, half_of_rows)
            return
        for row, result in zip(rows, answers, strict=True):
            warn(WarningName.ANSWER_REPAIRED, row=row, amount=1)
            repaired = not isinstance(result, Exception)
            if repaired or isinstance(result, (InvalidAnswer, Unanswered)):
                yield row, result

    def _answers(self, inputs: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> list[Any]:
        """Run the model on some rows of the batch, and return their results. Reports all warnings
        except AnswerCut: an answer that was cut is an error, or its JSON is complete."""
        with collect_warnings() as warnings:
            answers = self._runtime(inputs)
        for warning in warnings:
            if warning.name is not WarningName.ANSWER_CUT:
                warn(warning.name, row=rows[warning.row], amount=warning.amount)
        return [*map(self._result, answers)]

    def _result(self, result: Any) -> Any:
        if isinstance(result, Exception):
            return result
        text, about = result
        try:
            value = self._check(text, about["finish_reason"])
        except InvalidAnswer as error:
            return error
        return value if self._model.details is None else (value, about)

    def _repair_messages(self, error: InvalidAnswer) -> list[Message]:
        """Return the messages that ask again: the invalid answer, and what is wrong with it."""
        request = (
            f"This answer is invalid: {error.problem}. Answer again, only with JSON that fits this "
            f"JSON Schema: {self._check.document}"
        )
        return [{"role": "assistant", "content": error.text}, {"role": "user", "content": request}]
