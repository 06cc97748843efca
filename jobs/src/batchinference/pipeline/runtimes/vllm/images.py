"""Replaces image URLs in chat messages with the images, so that vLLM itself fetches nothing."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from batchinference.pipeline.media.images import open_image
from batchinference.pipeline.runtimes.prompts import Message, Part, data_uri, json_compatible
from batchinference.pipeline.storage.allowed_addresses import Allowed
from batchinference.pipeline.storage.url_fetcher import Fetcher
from batchinference.spec.models import VllmModel

MAX_BYTES = 64 << 20
"""Maximum size of a downloaded image in bytes."""


class ImageInliner:
    """Replaces the URLs of images with the content of the images."""

    def __init__(self, model: VllmModel) -> None:
        self._fetcher = Fetcher(
            Allowed(model.allow), MAX_BYTES, "model.allow", "an image of a prompt may have"
        )

    def __call__(self, messages: Any) -> list[Message]:
        """Return the messages of a chat with images as data URIs. Raises ValueError for other parts
        than texts and images, TypeError for other values than messages, and errors of Fetcher."""
        return [self._message(message) for message in json_compatible(messages)]

    def _message(self, message: Any) -> Message:
        if not isinstance(message, dict):
            raise TypeError("a message is an object")
        content = message.get("content")
        if isinstance(content, str | None):
            return message
        if not isinstance(content, list):
            raise TypeError("the content of a message is a text or a list of parts")
        return {**message, "content": [self._part(part) for part in content]}

    def _part(self, part: Part) -> Part:
        """Return a part with only the fields of its type. Other fields could hold tensors."""
        kind = part.get("type")
        if kind == "text":
            return {"type": "text", "text": part["text"]}
        if kind != "image_url":
            raise ValueError(f"the content of a message has text and image_url, not '{kind}'")
        image = part["image_url"]
        url = image.get("url") if isinstance(image, Mapping) else image
        return {"type": "image_url", "image_url": {"url": data_uri(self._content(url))}}

    def _content(self, url: Any) -> bytes:
        """Return the image file at a URL: http, https or data. Raises ValueError for other URLs."""
        scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
        if scheme == "data":
            content = _decoded_data_uri(url)
        elif scheme in ("http", "https"):
            content = self._fetcher.fetch_url(url)
        else:
            raise ValueError("expected the address of an image: http://, https:// or data:")
        with open_image(content):
            return content


def _decoded_data_uri(uri: str) -> bytes:
    head, _, content = uri.partition(",")
    if not head.endswith(";base64"):
        raise ValueError("a data URI of an image is in base64")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a data URI of an image is not base64: {error}") from None
