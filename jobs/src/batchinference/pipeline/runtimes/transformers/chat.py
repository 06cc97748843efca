"""What a language model is asked: the prompt of each row, as text or as messages of a chat."""

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
    """The prompt of a row: for a model with a chat template messages.

    A text that comes without a template is continued as it is; a list of messages is a chat
    whatever the model has.
    """
    asked = content_of(model, row)
    if isinstance(asked, str) and (not chat or (model.prompt is None and not model.images)):
        return asked
    return chat_of(model, row, [{"type": "image", "image": image} for image in images])


def images_of(model: TransformersModel, row: Row) -> list[Any]:
    """The images of a row, in the order of their names, as Pillow has them."""
    return pictures([row[name] for name in model.images])


def in_parts(messages: list[Message]) -> list[Message]:
    """The messages in parts, as processors want them."""
    return [
        {**turn, "content": [_part(part) for part in parts_of(turn.get("content"))]}
        for turn in messages
    ]


def _part(part: Part) -> Part:
    # of an image or a film in a column the library would fetch the address
    if part.get("type") != "text" and not isinstance(part.get("image"), Image.Image):
        raise TypeError(f"a message in a column holds text alone, not '{part.get('type')}'")
    return part
