"""Answers rows that are complete requests of the OpenAI API with models of the library."""

import base64
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import PydanticCustomError

from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.openai_requests import (
    body_of,
    check_fields,
    json_bytes,
    path_of_row,
    response_to,
)
from batchinference.pipeline.runtimes.prompts import rows_of
from batchinference.pipeline.runtimes.transformers.encoders import EncoderRuntime
from batchinference.pipeline.runtimes.transformers.generation import GenerationRuntime
from batchinference.spec.models import TransformersModel

_Zero = Annotated[float, Field(ge=0, le=0)] | None
_No = Literal[False] | None
_COMPLETION_TOKENS = 16
"""The default of OpenAI for `/completions`."""


def _without_empty(stop: str | list[str] | None) -> str | list[str] | None:
    """Return `stop`. Raises PydanticCustomError if one of its texts is empty."""
    if stop is not None and "" in [stop, *stop]:
        raise PydanticCustomError("empty", "an empty text would end each answer at once")
    return stop


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[_Text] | None = None

    def as_turn(self, *, parts: bool) -> dict[str, Any]:
        """Return the message for a chat template. If the template takes no content in `parts`, the
        texts of the parts become the lines of one text, as in vLLM."""
        turn = {"content": "", **self.model_dump(exclude_none=True)}
        if isinstance(self.content, list) and not parts:
            turn["content"] = "\n".join(part.text for part in self.content)
        return turn


class _Generation(BaseModel):
    """Parameters of a request. Those that the library lacks accept only values without effect."""

    model_config = ConfigDict(strict=True)
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: Annotated[str | list[str] | None, AfterValidator(_without_empty)] = None
    seed: int | None = None
    n: Literal[1] | None = None
    frequency_penalty: _Zero = None
    presence_penalty: _Zero = None

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens of the answer."""
        return self.max_tokens

    def sampling(self) -> dict[str, Any]:
        """Return the parameters with the names of the library. Parameters that a request leaves out
        have the values in the files of the model."""
        options: dict[str, Any] = {"max_new_tokens": self.limit}
        if self.temperature == 0:
            options["do_sample"] = False
        elif (self.temperature, self.top_p, self.seed) != (None, None, None):
            # top_k: 0 lifts the library's own limit to the 50 most likely tokens
            options |= {"do_sample": True, "temperature": self.temperature, "top_k": 0}
            options |= {"top_p": self.top_p, "seed": self.seed}
        options["stop_strings"] = self.stops() or None
        return {name: value for name, value in options.items() if value is not None}

    def stops(self) -> list[str]:
        """Return the texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class _Chat(_Generation):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    logprobs: _No = None

    def content(self, *, parts: bool) -> Any:
        """Return the messages. `parts` says whether the chat template accepts content in parts."""
        return [message.as_turn(parts=parts) for message in self.messages]

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class _Completion(_Generation):
    prompt: str
    max_tokens: PositiveInt | None = _COMPLETION_TOKENS
    echo: _No = None

    def content(self, **_: bool) -> Any:
        return self.prompt


class _Embeddings(BaseModel):
    model_config = ConfigDict(strict=True)
    input: str | Annotated[list[str], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None

    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


_BODIES: dict[str, type[BaseModel]] = {
    "/chat/completions": _Chat,
    "/completions": _Completion,
    "/embeddings": _Embeddings,
}


class Request(NamedTuple):
    path: str
    body: Any


class RequestRuntime:
    """Answers the requests of a batch. Requests with equal parameters are computed together."""

    def __init__(self, model: TransformersModel, device: Device) -> None:
        self._model = model
        own = {"request": None, "request_url": None, "inputs": {"text": "text"}}
        self._runtime: Any
        if model.task == "feature-extraction":
            embedding = model.model_copy(update={**own, "too_long": "fail"})
            self._path, self._runtime = "/embeddings", EncoderRuntime(embedding, device)
        else:
            generating = model.model_copy(update={**own, "details": "details"})
            # the API of OpenAI answers each chat in a new turn
            self._runtime = GenerationRuntime(generating, device, continues=False)
            self._path = "/chat/completions"

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[Any]:
        """Return the response to each row (the JSON text of its body), or the error of the row."""
        results: list[Any] = [self._request_or_error(row) for row in rows_of(inputs)]
        groups = defaultdict[Any, list[int]](list)
        for row, request in enumerate(results):
            if isinstance(request, Request):
                key = request.body.sampling() if self._path != "/embeddings" else {}
                groups[request.path, json.dumps(key)].append(row)
        for (path, key), rows in groups.items():
            bodies = [results[row].body for row in rows]
            answers = (
                self._embedded(bodies, rows)
                if path == "/embeddings"
                else self._generated(path, json.loads(key), bodies, rows)
            )
            for row, answer in zip(rows, answers, strict=True):
                results[row] = json_bytes(response_to(path, self._model.source, *answer)).decode()
        return results

    def _request_or_error(self, row: Mapping[str, Any]) -> Request | Exception:
        try:
            path = path_of_row(self._model, row, self._path)
            if (path == "/embeddings") != (self._path == "/embeddings"):
                raise ValueError(f"requestUrl: the task {self._model.task} does not serve {path}")
            body = {k: v for k, v in body_of(self._model, row).items() if v is not None}
            kind = _BODIES[path]
            check_fields(path, body, kind.model_fields.keys())
            return Request(path, kind.model_validate(body))
        except ValidationError as error:
            (first, *_) = error.errors()
            name = ".".join(map(str, first["loc"]))
            return ValueError(f"request: '{name}' is not supported: {first['msg']}")
        except (ValueError, TypeError) as error:
            return error

    def _generated(
        self, path: str, sampling: dict[str, Any], bodies: Sequence[Any], rows: Sequence[int]
    ) -> list[tuple[list[Any], int, int]]:
        """Return the choices of each request, and the numbers of tokens of prompt and answer."""
        chat = path == "/chat/completions"
        runtime = self._runtime.with_sampling(sampling, chat=chat)
        contents = [body.content(parts=runtime.takes_parts) for body in bodies]
        outputs = self._run(runtime, contents, rows)
        answers = []
        for body, (texts, about) in zip(bodies, outputs, strict=True):
            ends = [texts.find(stop) for stop in body.stops() if stop in texts]
            reason = "stop" if ends else about["finish_reason"]
            text = texts[: min(ends, default=len(texts))]
            value = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, **value, "logprobs": None, "finish_reason": reason}
            answers.append(([choice], about["prompt_tokens"], about["completion_tokens"]))
        return answers

    def _embedded(
        self, bodies: Sequence[_Embeddings], rows: Sequence[int]
    ) -> list[tuple[list[Any], int, None]]:
        """Return the embeddings of each request, and the number of tokens of its texts."""
        texts = [text for body in bodies for text in body.texts()]
        owners = [row for row, body in zip(rows, bodies, strict=True) for _ in body.texts()]
        vectors = iter(self._run(self._runtime, texts, owners))
        answers: list[tuple[list[Any], int, None]] = []
        for body in bodies:
            data = [
                {"object": "embedding", "index": at, "embedding": _encoded(next(vectors), body)}
                for at, _ in enumerate(body.texts())
            ]
            answers.append((data, sum(self._runtime.lengths(body.texts())), None))
        return answers

    def _run(self, runtime: Any, values: Sequence[Any], owners: Sequence[int]) -> Any:
        """Return the results of a runtime for values of the rows `owners`, and report warnings."""
        column = np.empty(len(values), dtype=object)
        column[:] = values
        with collect_warnings() as warnings:
            output = runtime({"text": column})
        for warning in warnings:
            warn(warning.name, row=owners[warning.row], amount=warning.amount)
        return output


def _encoded(vector: np.ndarray, body: _Embeddings) -> Any:
    if body.encoding_format != "base64":
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
