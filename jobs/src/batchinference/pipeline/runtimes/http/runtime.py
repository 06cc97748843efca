"""Runs models behind an HTTP endpoint."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.http import (
    ApiAdapter,
    Credentials,
    Endpoint,
    RequestFailed,
    form_of,
)
from batchinference.pipeline.runtimes.prompts import rows_of
from batchinference.spec.models import HttpModel


class HttpRuntime:
    """Sends the requests for all rows of a batch concurrently. The runtime has its own event loop
    for its whole lifetime, so that connections are reused between batches."""

    def __init__(self, model: HttpModel, device: Device) -> None:
        self._form, keys = form_of(model), Credentials(model)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._endpoint = self._run(_open(model, keys, self._form))
        weakref.finalize(self, _close, self._loop, self._endpoint)

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[Any]:
        """Return one result per row, with an exception in place of the result of a failed row.

        Raises ConnectionError if the endpoint is down, and JobFailure if it would reject every row.
        """
        answers: list[Any] = self._run(self._ask_all(list(rows_of(inputs))))
        return answers

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _ask_all(self, rows: list[dict[str, Any]]) -> list[Any]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(row)) for row in rows]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, row: Mapping[str, Any]) -> Any:
        try:
            body = self._form.request(row)
        except Exception as error:  # noqa: BLE001 - any error caused by the row's values
            return error
        try:
            return await self._endpoint.ask(body)
        except RequestFailed as error:
            return error


def checks(model: HttpModel) -> None:
    """Raise ModelLoad if an environment variable with credentials of the model is not set."""
    Credentials(model)


async def _open(model: HttpModel, keys: Credentials, form: ApiAdapter) -> Endpoint:
    return Endpoint(model, keys, form)


def _close(loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> None:
    asyncio.run_coroutine_threadsafe(endpoint.close(), loop).result(timeout=5)
    loop.call_soon_threadsafe(loop.stop)
