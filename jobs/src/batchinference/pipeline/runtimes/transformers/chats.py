"""What a language model is asked: the prompt of each row, as text or as messages of a chat."""

from __future__ import annotations

from typing import Any

from batchinference.pipeline.prompts import content_of, opening_of
from batchinference.pipeline.runtimes.transformers.values import pictures
from batchinference.spec.models import TransformersModel

Message = dict[str, Any]
Row = dict[str, Any]


def prompt_of(model: TransformersModel, row: Row, *, chat: bool) -> str | list[Message]:
    """The prompt of a row: for a model with a chat template messages.

    A text that comes without a template is continued as it is; a list of messages is a chat
    whatever the model has.
    """
    asked = content_of(model, row)
    if isinstance(asked, list):
        return [*opening_of(model, row), *map(_message, asked)]
    if not isinstance(asked, str):
        raise TypeError(f"expected text or a list of messages, got {type(asked).__name__}")
    if not chat or (model.prompt is None and not model.images):
        return asked
    return [*opening_of(model, row), {"role": "user", "content": asked}]


def _message(value: Any) -> Message:
    """A message out of a column, without the fields that other messages of the column have."""
    if not isinstance(value, dict) or not value.get("role"):
        raise TypeError("a message of a conversation has 'role' and 'content'")
    return {key: child for key, child in value.items() if child is not None}


def images_of(model: TransformersModel, row: Row) -> list[Any]:
    """The images of a row, in the order of their names, as Pillow has them."""
    return pictures([row[name] for name in model.images])


def with_images(messages: list[Message], images: list[Any]) -> list[Message]:
    """The messages in parts, as processors want them, with the images before what the user says
    first."""
    parts = [{**turn, "content": _parts(turn["content"])} for turn in messages]
    for turn in parts:
        if turn["role"] == "user":
            shown = [{"type": "image", "image": image} for image in images]
            turn["content"] = [*shown, *turn["content"]]
            return parts
    raise ValueError("the conversation holds no message of the role 'user'")


def _parts(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    for part in content:
        # of an image or a film the library would fetch the address
        if part.get("type") != "text":
            raise TypeError(f"a message in a column holds text alone, not '{part.get('type')}'")
    return list(content)
