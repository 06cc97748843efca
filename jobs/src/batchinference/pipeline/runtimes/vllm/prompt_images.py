"""Downloads the images of prompts before vLLM sees their URLs.

vLLM would download the URLs in a chat with the network access of the job. This module instead
downloads them with the rules for URLs in the input, and passes the content to vLLM.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.media.decoding import open_image
from batchinference.pipeline.runtimes.prompts import (
    Message,
    Part,
    data_uri,
    plain,
)
from batchinference.pipeline.runtimes.vllm.stages import IsolatingStage, Row
from batchinference.pipeline.storage.allowed_addresses import Allowed
from batchinference.pipeline.storage.http import THREADS, Fetcher
from batchinference.spec.models import VllmModel

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
