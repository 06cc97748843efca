"""Sends rows to an HTTP endpoint, with retries and with limits of concurrency and rate."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
import numpy as np

from batchinference.credentials import MASK, add_secrets, without_credentials
from batchinference.pipeline.error_classification import ends_the_job, is_transient_status
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.exact_json import as_text, load_exact, load_unique
from batchinference.pipeline.rows_in_flight import IN_FLIGHT, Unanswered, answers_of
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.http_api import ApiAdapter, adapter_for, url_of
from batchinference.pipeline.runtimes.http_concurrency import ConcurrencyLimit, Slots
from batchinference.pipeline.runtimes.http_retry_policy import (
    BadAnswer,
    NoResponse,
    Overloaded,
    RateLimited,
    RateLimiter,
    RequestFailed,
    RequestInvalid,
    RequestTimeout,
    Retries,
)
from batchinference.pipeline.runtimes.openai_requests import json_bytes
from batchinference.pipeline.runtimes.prompts import rows_of
from batchinference.pipeline.storage import retry
from batchinference.pipeline.storage.object_stores import proxy_of
from batchinference.pipeline.storage.retry import LONGEST_PAUSE, retry_after
from batchinference.pipeline.storage.state_json import load_json
from batchinference.spec.durations import seconds_of
from batchinference.spec.models import HttpModel
from batchinference.spec.problems import MAX_MASKED
from batchinference.text import cut

MAX_QUOTED = 300
"""Maximum number of characters of a response that an error message quotes."""
_GATEWAY = {502, 503, 504}
_OVERLOADED = {503, 504}
_FATAL = {401, 404, 405, 407, 410}
"""Status codes that every row would get, for example because the key or the path is wrong."""
_INVALID = {400, 422}
_EXACT = ("text", "number")
"""Result types whose numbers are read as Decimal, so that no digit is lost."""
_FORMAT = "response_format"
Result = TypeVar("Result")


class Endpoint:
    """Sends the requests of one model. Must be used in the event loop that created it."""

    def __init__(self, model: HttpModel, credentials: Credentials, adapter: ApiAdapter) -> None:
        self._model, self._credentials, self._adapter = model, credentials, adapter
        self._pace = RateLimiter(model.requests_per_second)
        self._limit = ConcurrencyLimit(model.concurrency)
        self._retries = Retries(model.retries, self._pace, Slots(self._limit))
        self._session = aiohttp.ClientSession(
            headers=credentials.headers,
            timeout=aiohttp.ClientTimeout(total=seconds_of(model.timeout)),
            connector=aiohttp.TCPConnector(limit=model.concurrency),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=proxy_of(model.endpoint),  # `trust_env` would look up the proxy for each request
        )

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        await self._session.close()

    @property
    def has_answered(self) -> bool:
        """Whether the endpoint has answered a row without rejecting it."""
        return self._retries.answers > 0

    async def ask(self, body: bytes, url: str = "") -> Any:
        """Send JSON to `url`, by default to the model's endpoint. Return the answer for the method
        `result` of the adapter. Retries failed requests. Raises RequestFailed if only the row
        fails, ConnectionError if the endpoint is down, and JobFailure if every row would fail."""
        return await self._retries.ask(partial(self._request, body, url))

    async def _request(self, body: bytes, url: str) -> Any:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            answer = await self._post(body, url)
        except (RateLimited, Overloaded) as error:
            if self._limit.value == 1:  # a limit of 1 cannot be halved
                self._pace.pause(retry.HTTP.first_wait)
            self._limit.record_overload(began, clock(), late=isinstance(error, RequestTimeout))
            raise
        self._limit.record_answer(began)
        return answer

    async def _post(self, body: bytes, url: str) -> Any:
        try:
            data = aiohttp.BytesPayload(body, content_type="application/json")
            post = self._session.post(url or self._model.endpoint, data=data, allow_redirects=False)
            async with post as response:
                content = await response.read()
        except TimeoutError:
            raise RequestTimeout(f"no answer within {self._model.timeout}") from None
        except (aiohttp.ClientError, OSError) as error:
            problem = self._credentials.hide(f"{type(error).__name__}: {error}")
            raise NoResponse(f"the endpoint cannot be reached: {problem}") from None
        return self._read(response, content)

    def _read(self, response: aiohttp.ClientResponse, content: bytes) -> Any:
        status = response.status
        if HTTPStatus(200) <= status < HTTPStatus(300):
            return self._answer(content)
        start = content[:MAX_MASKED].decode(errors="replace")
        body = " ".join(self._credentials.hide(start).split())
        message = f"the endpoint answered {status}: {cut(body, MAX_QUOTED)}"
        wait = retry_after(response.headers)
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status in _GATEWAY and wait is not None):
            if wait is not None and wait > LONGEST_PAUSE:
                raise JobFailure(
                    f"the endpoint asks to wait {wait:g} seconds: its quota is used up. Run the "
                    "job again later"
                )
            raise RateLimited(message, wait or 0.0)
        if status in _OVERLOADED:
            raise Overloaded(message)
        if is_transient_status(status):
            no_response = status in _GATEWAY or status < HTTPStatus.INTERNAL_SERVER_ERROR
            raise (NoResponse if no_response else BadAnswer)(message, wait or 0.0)
        # 404 fails only this row if the row itself may name a missing model or path
        fails_row = self._model.request is not None and status == HTTPStatus.NOT_FOUND
        if (status in _FATAL and not fails_row) or status < HTTPStatus.BAD_REQUEST:
            raise JobFailure(f"{message} ({self._model.endpoint})")
        raise (RequestInvalid if status in _INVALID else RequestFailed)(message)

    def _answer(self, content: bytes) -> Any:
        try:
            answer = self._adapter.answer(self._parsed(content))
            return answer if self._model.request is None else (as_text(content), answer)
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise BadAnswer("the endpoint's answer is not JSON") from None
        except (RequestFailed, BadAnswer) as error:
            raise type(error)(self._credentials.hide(str(error))) from None
        except Exception as error:  # noqa: BLE001 - any unreadable response fails only this row
            problem = self._credentials.hide(f"{type(error).__name__}: {error}")
            raise RequestFailed(f"the answer cannot be read: {problem}") from None

    def _parsed(self, content: bytes) -> Any:
        """Return the JSON of a response. Raises ValueError if it is invalid."""
        # as a Decimal, Infinity differs from 1e400, which is an infinite float
        if self._model.api != "json":
            return load_json(content, parse_constant=Decimal)
        if self._model.result_type in _EXACT:
            return load_exact(content)
        return load_unique(content, parse_constant=Decimal)


class Credentials:
    """The request headers of a model, with its credentials from environment variables."""

    def __init__(self, model: HttpModel) -> None:
        named = {*model.headers_from.values(), *filter(None, [model.api_key_env])}
        self._values = {variable: _value(variable) for variable in sorted(named)}
        add_secrets(self._values.values())
        self.headers = {
            header: self._values[variable] for header, variable in model.headers_from.items()
        }
        if model.api_key_env is not None:
            self.headers["Authorization"] = f"Bearer {self._values[model.api_key_env]}"

    def hide(self, text: str) -> str:
        """Return the text with the credentials masked, because a response may repeat them."""
        for value in self._values.values():  # even values too short to be masked elsewhere
            text = text.replace(value, MASK)
        return without_credentials(text)


def _value(variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ModelLoad(
            f"the environment variable {variable}, which holds a key of the endpoint, is not set. "
            "Export it, or on a cluster fill it from a Secret in cluster.env"
        )
    return value


class EndpointThread:
    """The endpoint of a model, and the thread of its event loop. All runtimes of the model in this
    process share both, so that the limits apply to the requests of all batches together."""

    def __init__(self, model: HttpModel, credentials: Credentials) -> None:
        self.adapter = adapter_for(model)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.endpoint = self.run(_open(model, credentials, self.adapter))
        weakref.finalize(self, _close, self._loop, self.endpoint)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a coroutine that runs on the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


_SHARED: weakref.WeakValueDictionary[Any, EndpointThread] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def _shared(model: HttpModel) -> EndpointThread:
    """Return the endpoint of a model. It is closed when no runtime refers to it any more."""
    credentials = Credentials(model)
    key = model.model_dump_json(by_alias=True), *credentials.headers.items()
    with _LOCK:
        shared = _SHARED.get(key) or EndpointThread(model, credentials)
        _SHARED[key] = shared
        return shared


class HttpRuntime:
    """Sends the requests of all rows of a batch, and of batches of other threads, concurrently."""

    def __init__(self, model: HttpModel, device: Device) -> None:
        self._model, self._shared = model, _shared(model)
        IN_FLIGHT.wanted = model.concurrency

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[Any]:
        """Return the result of each row, or the exception of a failed or unanswered row. If the
        endpoint is down, or would reject every row, that error is the cause of unanswered rows."""
        rows = list(rows_of(inputs))
        ask = partial(self._ask, IN_FLIGHT.expect(len(rows)))
        answers: list[Any] = self._shared.run(answers_of(ask, rows, IN_FLIGHT.given_up))
        result = self._shared.adapter.result
        return [
            answer if isinstance(answer, Exception) else result(row, answer)
            for row, answer in enumerate(answers)
        ]

    async def _ask(self, answered: Callable[[], None], row: Mapping[str, Any]) -> Any:
        try:
            return await self._answer(row)
        except Exception as error:
            if not ends_the_job(error):
                raise
            raise Unanswered(error) from error
        finally:
            answered()

    async def _answer(self, row: Mapping[str, Any]) -> Any:
        """Return the answer to a row, or the error of the row. Raises other errors."""
        try:
            request = self._shared.adapter.request(row)
            body, url = json_bytes(request), url_of(self._model, row)
        except Exception as error:  # noqa: BLE001 - any error caused by the row's values
            return error
        try:
            return await self._shared.endpoint.ask(body, url)
        except RequestFailed as error:
            if isinstance(error, RequestInvalid) and self._model.answer_schema is not None:
                await self._check_schema(request, error)
            return error

    async def _check_schema(self, request: Mapping[str, Any], refusal: RequestInvalid) -> None:
        """Raise JobFailure if the endpoint does not support the model's schema. That is so if it
        has answered no request yet, but answers this request without the schema."""
        endpoint = self._shared.endpoint
        if endpoint.has_answered:
            return
        free = {name: value for name, value in request.items() if name != _FORMAT}
        with suppress(RequestFailed):
            await endpoint.ask(json_bytes(free))
            raise JobFailure(
                f"schema: {refusal} (and answered the request without {_FORMAT}). Use only "
                "keywords that the endpoint supports, or remove 'schema'"
            )


def check_model(model: HttpModel) -> None:
    """Raise ModelLoad if an environment variable with credentials of the model is not set."""
    Credentials(model)


async def _open(model: HttpModel, credentials: Credentials, adapter: ApiAdapter) -> Endpoint:
    return Endpoint(model, credentials, adapter)


def _close(loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> None:
    asyncio.run_coroutine_threadsafe(endpoint.close(), loop).result(timeout=5)
    loop.call_soon_threadsafe(loop.stop)
