"""Texts and messages for a language model, from templates and the values of a row."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from batchinference.spec.models.prompts import Message as Example
from batchinference.spec.models.prompts import places

Message = dict[str, Any]
"""A turn of a chat: `role` and `content`."""
Part = dict[str, Any]
"""A part of a message's content: a text or an image."""


class Prompt(Protocol):
    """The fields of a model that say what it is told."""

    @property
    def inputs(self) -> dict[str, str]: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def system(self) -> str | None: ...
    @property
    def messages(self) -> list[Example]: ...
    @property
    def images(self) -> list[str]: ...


def rows_of(inputs: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """The rows of a batch, each input's name with its value."""
    return (dict(zip(inputs, values, strict=True)) for values in zip(*inputs.values(), strict=True))


def fill(template: str, row: Mapping[str, Any]) -> str:
    """The template with a row's values in their places. Raises ValueError where one is null."""
    values = {name: plain(row[name]) for name in places(template)}
    for name, value in values.items():
        if value is None:
            raise ValueError(f"input '{name}' is null")
    return template.format_map(values)


def plain(value: Any) -> Any:
    """A value of a batch as JSON knows it: bytes become base64."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def content_of(model: Prompt, row: Mapping[str, Any]) -> Any:
    """What the row asks: the filled prompt, or the value of the one input that is left."""
    if model.prompt is not None:
        return fill(model.prompt, row)
    texts = [message.content for message in model.messages] + [model.system or ""]
    used = {name for text in texts for name in places(text)} | set(model.images)
    (name,) = set(row) - used
    value = plain(row[name])
    if value is None:
        raise ValueError(f"input '{name}' is null")
    return value


def text_of(model: Prompt, row: Mapping[str, Any]) -> str:
    """What the row asks, where that can only be a text."""
    content = content_of(model, row)
    if not isinstance(content, str):
        raise TypeError(f"expected text, got {type(content).__name__}")
    return content


def opening_of(model: Prompt, row: Mapping[str, Any]) -> list[Message]:
    """What the chat of a row begins with: the system message and the examples."""
    system = [model.system] if model.system else []
    opening: list[Message] = [{"role": "system", "content": fill(text, row)} for text in system]
    return opening + [
        {"role": message.role, "content": fill(message.content, row)} for message in model.messages
    ]


def messages_of(model: Prompt, row: Mapping[str, Any]) -> list[Message]:
    """The chat of a row, in OpenAI's form."""
    return chat_of(model, row, [_image_part(row[name]) for name in model.images])


def chat_of(model: Prompt, row: Mapping[str, Any], images: Sequence[Part]) -> list[Message]:
    """The chat of a row: what it begins with, then what the row asks.

    Images stand before the text of the message that the prompt makes, or of the first message of
    the user in a conversation.
    """
    asked = content_of(model, row)
    if isinstance(asked, str):
        turns: list[Message] = [{"role": "user", "content": asked}]
    elif isinstance(asked, list):
        turns = [_message(turn) for turn in asked]
    else:
        raise TypeError(f"expected text or a list of messages, got {type(asked).__name__}")
    return [*opening_of(model, row), *(_shown(turns, images) if images else turns)]


def _message(value: Any) -> Message:
    """A message of a conversation, without the fields that other messages of its column have."""
    if not isinstance(value, dict) or not value.get("role"):
        raise TypeError("a message of a conversation has 'role' and 'content'")
    message: Message = _without_gaps(value)
    if isinstance(message.get("content"), list):
        message["content"] = [_without_gaps(part) for part in message["content"]]
    return message


def _without_gaps(value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError("the 'content' of a message is a text, or a list of parts with a 'type'")
    return {name: child for name, child in value.items() if child is not None}


def _shown(turns: list[Message], images: Sequence[Part]) -> list[Message]:
    for number, turn in enumerate(turns):
        if turn["role"] == "user":
            seen = {**turn, "content": [*images, *parts_of(turn.get("content"))]}
            return [*turns[:number], seen, *turns[number + 1 :]]
    raise ValueError("the conversation holds no message of the role 'user'")


def parts_of(content: Any) -> list[Part]:
    """A message's content in parts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or [])


def _image_part(value: Any) -> Part:
    return {"type": "image_url", "image_url": {"url": data_uri(value)}}


def data_uri(value: Any) -> str:
    """An image as a data URI: pixels (height x width x channels, uint8) as PNG, the bytes of an
    image file as they are. An address stays what it is."""
    from PIL import Image

    from batchinference.pipeline.media.image_file import open_image

    if isinstance(value, str):
        if not value.startswith(("http://", "https://", "data:")):
            raise ValueError("expected an image, got a text that is no address")
        return value
    if isinstance(value, bytes):
        with open_image(value) as image:
            return _encoded(value, image.get_format_mimetype() or "application/octet-stream")
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        raise TypeError(f"expected an image, got {type(value).__name__}")
    buffer = io.BytesIO()
    pixels = value[..., 0] if value.ndim == 3 and value.shape[2] == 1 else value
    Image.fromarray(pixels).save(buffer, "PNG")
    return _encoded(buffer.getvalue(), "image/png")


def _encoded(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
