"""Sends the prompts of rows to vLLM's engine."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from batchinference.pipeline.error_classification import ends_the_job, is_about_the_row
from batchinference.pipeline.errors import EngineDied
from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.pipeline.rows_in_flight import Unanswered
from batchinference.pipeline.runtimes.answers import result_of
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.prompts import (
    REPAIR,
    json_compatible,
    messages_of,
    rows_of,
    text_of,
)
from batchinference.pipeline.runtimes.vllm.chat_template import apply_template
from batchinference.pipeline.runtimes.vllm.engine import Prompt, engine_of
from batchinference.pipeline.runtimes.vllm.engine_log import EngineLog
from batchinference.pipeline.runtimes.vllm.images import ImageInliner
from batchinference.pipeline.runtimes.vllm.prompt_truncation import cut_to_fit
from batchinference.pipeline.runtimes.vllm.results import (
    RowTimeout,
    answer_of,
    labels_of,
    vector_of,
)
from batchinference.pipeline.runtimes.vllm.sampling import parameters_of_row
from batchinference.spec.models import VllmModel
from batchinference.spec.warnings import WarningName

Row = Mapping[str, Any]
_Result = TypeVar("_Result")
_TOO_LONG = re.compile(r"maximum context length is (\d+) tokens")


class Request(NamedTuple):
    """A row's prompt, parameters and adapter, and the number of tokens cut from its texts."""

    prompt: Prompt
    parameters: Any
    adapter: Any
    cut: int


class VllmRuntime:
    """Sends each row of a batch to the engine as a request of its own. The runtimes of a model
    share one engine, so that batches of several threads are computed at the same time."""

    def __init__(self, model: VllmModel, device: Device) -> None:
        self._model = model
        self._engine = engine_of(model, device)
        self._inlined = ImageInliner(model)
        self._in_prompt = [name for name in model.inputs if name not in model.parameter_inputs]
        self._has_row_parameters = bool(model.row_parameters)

    def __call__(self, inputs: dict[str, Any]) -> list[Any]:
        """Return the result of each row, or the exception of a failed or unanswered row. If a
        device has failed, that error is the cause of unanswered rows. Raises EngineDied if the
        engine has died, and other errors that are not about a row."""
        requests = self._requests(inputs)
        for row, request in enumerate(requests):
            if isinstance(request, Request) and request.cut:
                warn(WarningName.TEXT_CUT, row=row, amount=request.cut)
        asked = [request[:3] for request in requests if isinstance(request, Request)]
        answers = iter(self._engine.submit(asked).result())
        return [
            unanswered_if_ending(partial(self._result_or_error, row), next(answers))
            if isinstance(request, Request)
            else request
            for row, request in enumerate(requests)
        ]

    def _requests(self, inputs: dict[str, Any]) -> list[Request | Exception]:
        """Return the request of each row, or the row's error."""
        if self._model.images:
            return list(self._engine.threads.map(self._request_or_error, rows_of(inputs)))
        with self._engine.tokenizer_lock:
            return [self._request_or_error(row) for row in rows_of(inputs)]

    def _request_or_error(self, row: dict[str, Any]) -> Request | Exception:
        return self._or_error(self._request, row)

    def _request(self, row: dict[str, Any]) -> Request:
        if self._model.task == "score":
            return Request(*self._engine.prompt_of_pair(*_pair(row)), None, 0)
        own = self._has_row_parameters
        parameters = parameters_of_row(self._model, row) if own else self._engine.parameters
        name = self._model.adapter
        adapter = self._engine.adapter(json_compatible(row[name])) if name else None
        texts = {name: row[name] for name in (*self._in_prompt, REPAIR) if name in row}
        texts, cut = cut_to_fit(self._model, row, texts)
        return Request(self._prompt(texts), parameters, adapter, cut)

    def _or_error(self, function: Callable[[Any], _Result], value: Any) -> _Result | Exception:
        """Call a function with a value of a row. Return its result, or the error of the row."""
        try:
            return function(value)
        except Exception as error:  # noqa: BLE001 - vLLM raises many types
            return self._explained(row_error(error, self._engine.log))

    def _result_or_error(self, row: int, answer: Any) -> Any:
        return self._or_error(partial(self._result, row), answer)

    def _prompt(self, row: Row) -> Prompt:
        model = self._model
        if not model.is_chat:
            return self._engine.tokenize(_not_empty(text_of(model, row)))
        messages = messages_of(model, row)
        if not model.images:
            return self._engine.tokenize(apply_template(model, self._engine.processor, messages))
        messages, images = self._engine.without_images(self._inlined(messages))
        return {"prompt": apply_template(model, self._engine.processor, messages), **images}

    def _result(self, row: int, answer: Any) -> Any:
        """Return the result of a row of the batch from the engine's answer, and report its tokens.
        Raises the answer if it is an exception."""
        if isinstance(answer, RowTimeout):
            count_tokens(row, read=answer.read, made=answer.made)
        if isinstance(answer, BaseException):
            raise answer
        if self._model.task == "generate":
            return result_of(self._model, row, answer_of(self._model, answer))
        count_tokens(row, read=len(answer.prompt_token_ids), cached=answer.num_cached_tokens)
        numbers = vector_of(answer)
        if self._model.task == "classify":
            return labels_of(self._model, numbers, self._engine.labels)
        return numbers if self._model.task == "embed" else numbers.reshape(())[()]

    def _explained(self, error: Exception) -> Exception:
        """Return a clearer error if the prompt was too long; other errors unchanged."""
        match = _TOO_LONG.search(str(error))
        if match is None:
            return error
        generates = self._model.task == "generate"
        together = " for the prompt and the new text together" if generates else ""
        can_cut = not self._model.images and self._model.task != "score"
        fix = ", or set the model's field tooLong to truncate" if can_cut else ""
        return PromptTooLong(
            f"the prompt is too long: the model takes {match[1]} tokens{together}. "
            f"Shorten the prompt{fix}"
        )


class PromptTooLong(ValueError):
    """A prompt has more tokens than the model takes."""


def _pair(row: Row) -> tuple[str, str]:
    """Return the query and the document of a row. Raises TypeError if one is not a text."""
    for name in ("query", "document"):
        if not isinstance(row[name], str):
            raise TypeError(f"expected text in input '{name}', got {type(row[name]).__name__}")
    return row["query"], row["document"]


def _not_empty(prompt: str) -> str:
    if not prompt:
        raise ValueError("the prompt is empty. Set the model's field emptyInput to null")
    return prompt


def unanswered_if_ending(function: Callable[[Any], _Result], given: Any) -> _Result | Unanswered:
    """Call a function with the answer to a row, and return its result, or `Unanswered` if it raises
    an error that ends the job. Raises EngineDied, after which the process must end."""
    try:
        return function(given)
    except EngineDied:
        raise
    except Exception as error:
        if not ends_the_job(error):
            raise
        return Unanswered(error)


def row_error(error: Exception, log: EngineLog) -> Exception:
    """Return the error if it is about the row, and raise it otherwise. If the engine has died,
    raises the error of its device that `log` has, or else EngineDied."""
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        if fault := log.device_fault():
            raise fault from error
        raise EngineDied(
            f"the engine of vLLM has died ({error}). The output of its process says why"
        ) from error
    if not is_about_the_row(error):
        raise error
    return error
