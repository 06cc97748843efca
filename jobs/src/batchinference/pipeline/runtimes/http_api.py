"""Creates request bodies, and reads responses, for each API of HTTP endpoints."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isinf
from typing import Any

import numpy as np

from batchinference.credentials import without_credentials
from batchinference.pipeline.declared_types import exact_float
from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.pipeline.runtimes.answers import (
    NO_ANSWER,
    Answer,
    Text,
    report_response,
    result_of,
    usage_of,
)
from batchinference.pipeline.runtimes.http_retry_policy import (
    BadAnswer,
    IncompleteAnswer,
    RequestFailed,
)
from batchinference.pipeline.runtimes.openai_requests import body_of, path_of_row
from batchinference.pipeline.runtimes.prompts import (
    data_uri,
    fill_template,
    json_compatible,
    messages_of,
    placeholder_value,
    text_of,
)
from batchinference.spec.models import HttpModel
from batchinference.spec.models.http import PATHS
from batchinference.spec.models.prompts import fields_in
from batchinference.spec.problems import MAX_MASKED
from batchinference.spec.warnings import WarningName
from batchinference.text import cut


@dataclass(frozen=True)
class Embedding:
    """An embedding, the number of tokens of its text, and whether the text may have been cut."""

    value: np.ndarray
    tokens: int | None
    is_cut: bool


_RESULT_PATHS: dict[str, tuple[str, ...]] = {
    "chat": ("choices", "0", "message", "content"),
    "completions": ("choices", "0", "text"),
    "embeddings": ("data", "0", "embedding"),
}


class OpenAiApi:
    """The OpenAI chat, completions and embeddings APIs."""

    def __init__(self, model: HttpModel) -> None:
        self._model = model
        self._path = _RESULT_PATHS[model.api]
        self._width = 0  # the length of each embedding; 0 until one is read
        self._constraint: dict[str, Any] = {}
        if model.answer_schema is not None:
            named = {"name": "answer", "strict": True, "schema": model.answer_schema.document}
            self._constraint["response_format"] = {"type": "json_schema", "json_schema": named}

    def request(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request body for a row. Raises ValueError or TypeError for invalid values."""
        model = self._model
        field = {"chat": "messages", "completions": "prompt", "embeddings": "input"}[model.api]
        content = messages_of(model, row) if model.api == "chat" else text_of(model, row)
        return {"model": model.name, field: content, **self._constraint, **model.sampling}

    def answer(self, response: Any) -> Answer | Embedding:
        """Return the answer in a response. For an invalid answer, raises BadAnswer if a retry may
        give a valid one, and RequestFailed if not."""
        results = response.get(self._path[0]) if isinstance(response, dict) else None
        if not isinstance(results, list) or not results:
            raise BadAnswer(f"the answer has no '{self._path[0]}': {_excerpt(response)}")
        _require(len(results) == 1, f"has several '{self._path[0]}'", response)
        value, (tokens, cached, made) = _value_at(response, self._path), usage_of(response)
        if self._model.api == "embeddings":
            return Embedding(self._embedding(value), tokens, self._may_be_cut(tokens))
        ending = results[0].get("finish_reason")
        if ending in NO_ANSWER:
            raise IncompleteAnswer(f"the endpoint did not complete the answer: {_excerpt(results)}")
        if value is None:
            raise RequestFailed(f"the answer has no text: {_excerpt(results)}")
        reason = cut(_encodable(ending), 64) if isinstance(ending, str) else None
        return Answer([Text(_text(value), made, reason)], tokens, cached)

    def result(self, row: int, answer: Answer | Embedding) -> Any:
        """Return the result of a row from its answer, and report the row's tokens and warnings."""
        if isinstance(answer, Answer):
            return result_of(self._model, row, answer)
        count_tokens(row, read=answer.tokens)
        if answer.is_cut:
            warn(WarningName.TEXT_CUT, row=row)
        return answer.value

    def _embedding(self, value: Any) -> np.ndarray:
        """Return an embedding. Raises RequestFailed if it is no vector, and BadAnswer if its length
        differs from the length of the first embedding."""
        numbers = _numbers(value)
        _require(numbers.ndim == 1 and numbers.size > 0, "is not a vector", value)
        self._width = self._width or len(numbers)
        if len(numbers) != self._width:
            raise BadAnswer(f"the answer has {len(numbers)} numbers, the first had {self._width}")
        return numbers

    def _may_be_cut(self, tokens: int | None) -> bool:
        """Return whether the endpoint may have cut the text: it has read as many tokens as the
        limit. Raises RequestFailed if `tokens` is None, or if `tooLong` forbids a cut."""
        limit = self._model.max_input_tokens
        if limit is None:
            return False
        if tokens is None:
            raise RequestFailed(
                "the answer has no 'usage.prompt_tokens', which maxInputTokens needs. Remove "
                "maxInputTokens"
            )
        if tokens < limit:
            return False
        if self._model.too_long == "fail":
            raise RequestFailed(
                f"the text has {limit} tokens or more, so that the endpoint may have cut it. "
                "Divide the texts with a step chunk, or set the model's field tooLong to truncate"
            )
        return True


class JsonApi:
    """Any endpoint that accepts and returns JSON."""

    def __init__(self, model: HttpModel) -> None:
        self._body, self._images, self._dimensions = model.body, set(model.images), 0
        self._path = tuple(model.result_path.split(".")) if model.result_path else ()
        self._convert = _CONVERT[model.result_type]

    def request(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return `model.body` with its placeholders filled. Raises ValueError or TypeError."""
        values = {
            name: data_uri(value) if name in self._images else json_compatible(value)
            for name, value in row.items()
        }
        return {name: _filled(part, values) for name, part in self._body.items()}

    def answer(self, response: Any) -> Any:
        """Return the value at `resultPath` as `resultType`. Raises RequestFailed if there is no
        such value, or if an array has more or fewer dimensions than the first one."""
        value = self._convert(_value_at(response, self._path))
        if isinstance(value, np.ndarray) and (value.size or value.ndim > self._dimensions > 0):
            self._dimensions = self._dimensions or value.ndim
            problem = f"has {value.ndim} dimensions, the first had {self._dimensions}"
            _require(value.ndim == self._dimensions, problem, value.tolist())
        return value

    def result(self, row: int, answer: Any) -> Any:
        """Return the answer. An empty array gets as many dimensions as the other answers have."""
        if not isinstance(answer, np.ndarray) or answer.size:
            return answer
        return answer.reshape(answer.shape + (0,) * (self._dimensions - answer.ndim))


class OpenAiRequests:
    """The OpenAI APIs for rows that contain complete requests."""

    def __init__(self, model: HttpModel) -> None:
        self._model = model

    def request(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row's request with the job's model, if any. Raises ValueError or TypeError."""
        body, name = body_of(self._model, row), self._model.name
        return body if name is None else {**body, "model": name}

    def answer(self, response: Any) -> Any:
        """Return the response. Raises BadAnswer if it has no results."""
        if not isinstance(response, dict) or not (response.get("choices") or response.get("data")):
            raise BadAnswer(f"the answer has neither 'choices' nor 'data': {_excerpt(response)}")
        return response

    def result(self, row: int, answer: tuple[str, Any]) -> str:
        """Return the text of the response to a row, and report the row's tokens and warnings."""
        text, response = answer
        report_response(row, response)
        return text


ApiAdapter = OpenAiApi | JsonApi | OpenAiRequests


def adapter_for(model: HttpModel) -> ApiAdapter:
    """Return the adapter that translates rows and answers for the API of a model."""
    if model.request is not None:
        return OpenAiRequests(model)
    return JsonApi(model) if model.api == "json" else OpenAiApi(model)


def url_of(model: HttpModel, row: Mapping[str, Any]) -> str:
    """Return the URL for a row. Raises ValueError if it is not the URL of an OpenAI API."""
    if model.request_url is None:
        return model.endpoint
    return model.url.rstrip("/") + path_of_row(model, row, PATHS[model.api])


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of the body with the placeholders in its strings filled from a row."""
    if isinstance(part, dict):
        return {name: _filled(child, values) for name, child in part.items()}
    if isinstance(part, list):
        return [_filled(child, values) for child in part]
    if not isinstance(part, str):
        return part
    names = fields_in(part)
    is_value = part == f"{{{''.join(names)}}}"
    return placeholder_value(values, names[0]) if is_value else fill_template(part, values)


def _value_at(response: Any, path: tuple[str, ...]) -> Any:
    value = response
    for key in path:
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            problem = f"the answer has no '{'.'.join(path)}'"
            raise RequestFailed(f"{problem}: {_excerpt(response)}") from None
    return value


def _require(valid: bool, problem: str, value: Any) -> None:
    """Raise RequestFailed if a value is not `valid`."""
    if not valid:
        raise RequestFailed(f"the answer {problem}: {_excerpt(value)}")


def _text(value: Any) -> str:
    _require(isinstance(value, str), "is not text", value)
    _require(_encodable(value) == value, "is not valid Unicode", value)
    return str(value)


def _text_or_json(value: Any) -> str:
    return _text(value if isinstance(value, str) else _exact_json(value))


def _exact_json(value: Any) -> str:
    """Return a value of `load_exact` as JSON with the same numbers."""
    if isinstance(value, dict):
        fields = (f"{_exact_json(name)}: {_exact_json(child)}" for name, child in value.items())
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_exact_json, value)) + "]"
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> float:
    _require(type(value) in _NUMBERS, "is not a number", value)
    try:
        return exact_float(value, "float64")
    except ValueError:
        raise RequestFailed(f"the answer would be rounded as float64: {_excerpt(value)}") from None


def _integer(value: Any) -> int:
    _require(type(value) is int, "is not an integer", value)
    _require(-(1 << 63) <= value < 1 << 63, "does not fit 64 bits", value)
    return int(value)


def _boolean(value: Any) -> bool:
    _require(isinstance(value, bool), "is neither true nor false", value)
    return bool(value)


def _numbers(value: Any) -> np.ndarray:
    """Return a list of numbers, or nested lists of equal lengths, as a float32 array. Raises
    RequestFailed for other values, for integers that would be rounded, and for overflows."""
    items = np.array(value, object)
    flat = items.ravel().tolist()
    is_valid = isinstance(value, list) and {*map(type, flat)} <= _NUMBERS
    _require(is_valid, "is not a list of numbers of one shape", value)
    with np.errstate(over="ignore"):
        numbers = items.astype(np.float32)
    changed = _have_changed(flat, numbers.ravel().tolist())
    _require(not changed, "would be rounded as float32", value)
    return numbers


def _have_changed(exact: list[Any], numbers: list[float]) -> bool:
    """Return whether float32 `numbers` differ from the `exact` ones. Fractions may be rounded."""
    for before, after in zip(exact, numbers, strict=True):
        if type(before) is int:
            is_changed = before != after
        elif type(before) is float:  # 1e400 is a float too, read as infinity
            is_changed = isinf(after)
        else:  # a Decimal; Infinity stays infinite
            is_changed = isinf(after) and before != after
        if is_changed:
            return True
    return False


_NUMBERS = {int, float, Decimal}
_CONVERT: dict[str, Callable[[Any], Any]] = {
    "text": _text_or_json,
    "number": _number,
    "integer": _integer,
    "boolean": _boolean,
    "numbers": _numbers,
}


def _excerpt(value: Any) -> str:
    text = _encodable(_exact_json(value))
    return cut(without_credentials(text[:MAX_MASKED]), 200)  # masks need complete secrets


def _encodable(text: str) -> str:
    """Return the text with `?` for lone surrogates, which JSON allows and UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()
