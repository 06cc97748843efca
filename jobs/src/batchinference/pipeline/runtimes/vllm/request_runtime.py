"""Answers rows that are complete requests of the OpenAI API with vLLM's server."""

import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from batchinference.pipeline.rows_in_flight import Unanswered
from batchinference.pipeline.runtimes.answers import report_response
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.openai_requests import (
    body_of,
    check_fields,
    json_bytes,
    path_of_row,
)
from batchinference.pipeline.runtimes.prompts import rows_of
from batchinference.pipeline.runtimes.vllm.engine import engine_of
from batchinference.pipeline.runtimes.vllm.images import ImageInliner
from batchinference.pipeline.runtimes.vllm.runtime import row_error, unanswered_if_ending
from batchinference.pipeline.storage.state_json import load_json
from batchinference.spec.models import VllmModel

_GENERATION = {
    *("temperature", "top_p", "n", "stop", "seed", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "logprobs", "max_tokens", "response_format", "stream_options", "echo"),
    *("top_k", "min_p", "repetition_penalty", "length_penalty", "use_beam_search", "min_tokens"),
    *("stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens"),
    *("spaces_between_special_tokens", "allowed_token_ids", "bad_words", "structured_outputs"),
    *("add_special_tokens",),
}
_FIELDS = {
    "/chat/completions": _GENERATION
    | {"messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice"}
    | {"parallel_tool_calls", "reasoning_effort", "include_reasoning", "thinking_token_budget"}
    | {"chat_template_kwargs", "add_generation_prompt", "continue_final_message"},
    "/completions": _GENERATION | {"prompt", "suffix"},
    "/embeddings": {"input", "encoding_format", "dimensions"},
}
"""The fields that rows may set, by path. Other fields are refused: vLLM would accept tensors,
templates and files in some of them, and ignore the rest."""
_TEXTS = ("prompt", "input")


class RequestRefused(ValueError):
    """vLLM gives no valid answer to a request."""


class RequestRuntime:
    """Sends the request of each row to vLLM's server for the OpenAI API."""

    def __init__(self, model: VllmModel, device: Device) -> None:
        self._model = model
        self._engine = engine_of(model, device)
        self._inlined = ImageInliner(model)
        generated = "/chat/completions" if model.is_chat else "/completions"
        self._path = generated if model.task == "generate" else "/embeddings"

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        """Return the response to each row (the JSON text of its body), or the error of the row: if
        a device has failed, `Unanswered` because of that error. Raises other errors that are not
        about a row, such as EngineDied."""
        requests = list(self._engine.threads.map(self._request_or_error, rows_of(inputs)))
        asked = [request for request in requests if isinstance(request, tuple)]
        answers = iter(self._engine.answer_requests(asked))
        return [
            unanswered_if_ending(partial(self._result, row), next(answers))
            if isinstance(request, tuple)
            else request
            for row, request in enumerate(requests)
        ]

    def _request_or_error(self, row: Mapping[str, Any]) -> tuple[str, bytes] | Exception:
        try:
            path = path_of_row(self._model, row, self._path)
            if (path == "/embeddings") != (self._model.task == "embed"):
                raise ValueError(f"requestUrl: the task {self._model.task} does not serve {path}")
            return path, json_bytes(self._checked(path, body_of(self._model, row)))
        except Exception as error:  # noqa: BLE001 - any error caused by the row's values
            return row_error(error, self._engine.log)

    def _checked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body with only the fields that rows may set, and with images as data URIs."""
        check_fields(path, body, _FIELDS[path])
        checked = {name: body[name] for name in body.keys() & _FIELDS[path]}
        if "messages" in checked:
            checked["messages"] = self._inlined(checked["messages"])
        for name in checked.keys() & set(_TEXTS):
            _check_texts(name, checked[name])
        return {**checked, "model": self._model.source}

    def _result(self, row: int, response: tuple[int, bytes] | Unanswered) -> str | Exception:
        """Return the JSON of a response, and report the row's tokens and warnings; or return the
        error of the row. Raises EngineDied, or the error of a device."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(response, Unanswered):
            return response
        status, content = response
        text = content.decode(errors="replace")
        if status == HTTPStatus.OK:
            if not text.startswith("{"):
                return RequestRefused("the answer of the model is not JSON")
            report_response(row, load_json(text))
            return text
        if self._engine.has_died:
            return row_error(EngineDeadError(), self._engine.log)  # raises it
        return RequestRefused(f"the model answered {status}: {_message(text)}")


def _check_texts(name: str, value: Any) -> None:
    """Raise TypeError for other values than a text, the tokens of a text, or a list of these. A
    chat is refused, because vLLM would fetch its images."""
    values = value if isinstance(value, list) else [value]
    for part in values:
        tokens = part if isinstance(part, list) else [part]
        if not isinstance(part, str) and not all(type(token) is int for token in tokens):
            raise TypeError(f"request: '{name}' is a text, tokens, or a list of these")


def _message(text: str) -> str:
    """Return the message in a response with an error; the text itself if it has none."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text
