"""Wraps Ray's LLM stages with error isolation.

Without it, a stage ends the job if it cannot prepare a row, fails rows whose adapter cannot be
downloaded, and loses the reason why a model cannot be loaded.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.errors import JobFailure, ModelLoad, describe
from batchinference.pipeline.media.images import open_image
from batchinference.pipeline.ray_compat import StatefulStageUDF
from batchinference.pipeline.runtimes.model_files import (
    Adapters,
    NoAdapter,
    files_beside,
    files_of,
)
from batchinference.pipeline.runtimes.prompts import (
    Message,
    Part,
    data_uri,
    plain,
)
from batchinference.pipeline.runtimes.vllm.row_codec import ADAPTER, ERROR
from batchinference.pipeline.storage.allowed_addresses import Allowed
from batchinference.pipeline.storage.http import THREADS, Fetcher
from batchinference.spec.models import VllmModel

Row = dict[str, Any]


class IsolatingStage(StatefulStageUDF):
    """Base class that wraps one of Ray's stage classes, which prepares rows or runs the engine."""

    step: ClassVar[str]
    spec: ClassVar[VllmModel]
    lack: ClassVar[str]
    """A possible reason for a failed model load, appended to the error message; may be empty."""

    def __init__(self, **arguments: Any) -> None:
        # raised at the first batch, because Ray drops the cause of a constructor's error
        self._failure: JobFailure | None = None
        try:
            super().__init__(**self._with_files(arguments))
        except Exception as error:  # noqa: BLE001 - libraries raise many types
            self._failure = load_failure(self.step, self.spec, error, self.lack)

    def _with_files(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the model's local folder on the machine of this stage."""
        folder = files_beside(self.spec)
        if "model_config_kwargs" in arguments:
            config = {**arguments["model_config_kwargs"], "model": folder}
            return {**arguments, "model_config_kwargs": config}
        return {**arguments, "model": folder}

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        if self._failure is not None:
            raise self._failure
        async for made in super().__call__(batch):
            yield made

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        for made in await self._isolated(rows):
            yield made

    async def _isolated(self, rows: list[Row]) -> list[Row]:
        """Return the results of the rows. If they raise, split them to find the failed rows."""
        try:
            return await self._run(rows)
        except Exception as error:
            if not is_about_the_row(error):
                message = f"step '{self.step}' cannot continue: {describe(error)}"
                raise JobFailure(message) from error
            if len(rows) == 1:
                return [self._failed(rows[0], error)]
        half = len(rows) // 2
        return [*await self._isolated(rows[:half]), *await self._isolated(rows[half:])]

    async def _run(self, rows: list[Row]) -> list[Row]:
        stage: Any = super()  # Ray's type annotation of udf is not that of an async generator
        return [made async for made in stage.udf(rows)]

    def _failed(self, row: Row, error: Exception) -> Row:
        return {self.IDX_IN_BATCH_COLUMN: row[self.IDX_IN_BATCH_COLUMN], ERROR: describe(error)}


class GuardedEngine(IsolatingStage):
    """Wraps Ray's class that runs the engine, and passes adapters to it as local folders."""

    model: str
    """The value that Ray interprets as the base model."""

    def _with_files(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._adapters = Adapters(self.spec)
        return {**arguments, "model": files_of(self.spec)}

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        ready = []
        for row in rows:
            try:
                row["model"] = await self._model_of(row.pop(ADAPTER, None))
                ready.append(row)
            except NoAdapter as error:
                yield self._failed(row, error)
        # the engine reports the rows that it rejects; an exception is not about a row
        for made in await self._run(ready):
            yield made

    async def _model_of(self, adapter: Any) -> Any:
        """Return Ray's `model` value for a row: the adapter's folder, or else the base model."""
        if adapter is None:
            return self.model
        try:
            return await asyncio.to_thread(self._adapters.folder, adapter)
        except NoAdapter:
            raise
        except Exception as error:
            raise JobFailure(
                f"step '{self.step}': the adapter '{adapter}' cannot be fetched: {describe(error)}"
            ) from error


def guarded(kind: Any, guard: type[IsolatingStage], step: str, spec: VllmModel, lack: str) -> Any:
    """Return Ray's stage class wrapped with a guard. It keeps the class name, which Ray uses as the
    operator's name."""
    return type(kind.__name__, (guard, kind), {"step": step, "spec": spec, "lack": lack})


def load_failure(step: str, spec: VllmModel, error: Exception, lack: str = "") -> JobFailure:
    if isinstance(error, JobFailure):
        return error
    named = f"step '{step}': the model '{spec.source}' cannot be loaded{lack}"
    return ModelLoad(f"{named}: {describe(error)}")


MAX_BYTES = 64 << 20
"""Maximum size of a downloaded image in bytes."""


class Inlined:
    """Replaces the URLs of images with their content."""

    def __init__(self, model: VllmModel) -> None:
        self._fetcher = Fetcher(
            Allowed(model.allow), MAX_BYTES, "model.allow", "an image of a prompt may have"
        )

    def __call__(self, messages: Any) -> list[Message]:
        """Return the messages of a chat with images as data URIs.

        Raises ValueError for parts that are neither text nor image, and the errors of Fetcher."""
        return [self._message(message) for message in plain(messages)]

    def _message(self, message: Message) -> Message:
        content = message["content"]
        if not isinstance(content, list):
            return message
        return {**message, "content": [self._part(part) for part in content]}

    def _part(self, part: Part) -> Part:
        """Return a part with only the fields of its type. vLLM reads other fields too, such as
        tensors."""
        kind = part.get("type")
        if kind == "text":
            return {"type": "text", "text": part["text"]}
        if kind != "image_url":
            raise ValueError(f"the content of a message has text and image_url, not '{kind}'")
        image = part["image_url"]
        url = image.get("url") if isinstance(image, Mapping) else image
        return {"type": "image_url", "image_url": {"url": data_uri(self._content(url))}}

    def _content(self, url: Any) -> bytes:
        """Return the bytes of an image file from its URL. Raises ValueError for other schemes."""
        scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
        if scheme == "data":
            content = _of_data_uri(url)
        elif scheme in ("http", "https"):
            content = self._fetcher.fetch_url(url)
        else:
            raise ValueError("expected the address of an image: http://, https:// or data:")
        with open_image(content):
            return content


def _of_data_uri(uri: str) -> bytes:
    head, _, content = uri.partition(",")
    if not head.endswith(";base64"):
        raise ValueError("a data URI of an image is in base64")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a data URI of an image is no base64: {error}") from None


class GuardedImages(IsolatingStage):
    """Wraps Ray's class that decodes images, and inlines all images so that it downloads none."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._inlined = Inlined(self.spec)
        self._pool = ThreadPoolExecutor(THREADS)

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        ready = []
        for row, messages in zip(rows, await self._fetched(rows), strict=True):
            if isinstance(messages, Exception):
                yield self._failed(row, messages)
            else:
                ready.append({**row, "messages": messages})
        async for made in super().udf(ready):
            yield made

    async def _fetched(self, rows: list[Row]) -> list[list[Message] | Exception]:
        """Return the messages of each row, or the row's error."""
        run = asyncio.get_running_loop().run_in_executor
        return await asyncio.gather(*(run(self._pool, self._of_row, row) for row in rows))

    def _of_row(self, row: Row) -> list[Message] | Exception:
        try:
            return self._inlined(row["messages"])
        except Exception as error:
            if not is_about_the_row(error):
                raise
            return error
