"""Builds the prompt of each row for a language model, as text or as chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from batchinference.pipeline.runtimes.prompts import (
    Message,
    Part,
    chat_of,
    content_of,
    parts_of,
)
from batchinference.pipeline.runtimes.transformers.value_checks import pictures
from batchinference.spec.models import TransformersModel

Row = dict[str, Any]


def prompt_of(
    model: TransformersModel, row: Row, images: Sequence[Any] = (), *, chat: bool
) -> str | list[Message]:
    """Return the prompt of a row: messages if the model has a chat template (`chat`), else text.

    If there is neither a `prompt` template nor an image, a text is returned unchanged and the model
    continues it. A list of messages is always a chat, even if the model has no chat template.
    """
    asked = content_of(model, row)
    if isinstance(asked, str) and (not chat or (model.prompt is None and not model.images)):
        return asked
    return chat_of(model, row, [{"type": "image", "image": image} for image in images])


def images_of(model: TransformersModel, row: Row) -> list[Any]:
    """Return the images of a row as Pillow images, in the order of `model.images`."""
    return pictures([row[name] for name in model.images])


def in_parts(messages: list[Message]) -> list[Message]:
    """Return the messages with their content split into parts, as processors require."""
    return [
        {**turn, "content": [_part(part) for part in parts_of(turn.get("content"))]}
        for turn in messages
    ]


def _part(part: Part) -> Part:
    # the library would fetch the address of an image or video from a column
    if part.get("type") != "text" and not isinstance(part.get("image"), Image.Image):
        raise TypeError(f"a message in a column holds text alone, not '{part.get('type')}'")
    return part
