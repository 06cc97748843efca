"""Builds the prompts and chat messages of a language model from templates and row values."""

import base64
import io
import json
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.errors import ModelLoad, describe
from batchinference.pipeline.exact_json import load_unique
from batchinference.spec.expression import keys_of, root_of
from batchinference.spec.models.prompts import PromptSpec, placeholders
from batchinference.spec.reserved import OWN_PREFIX

Message = dict[str, Any]
"""A chat message: `role` and `content`."""
Part = dict[str, Any]
"""A part of a message's content: text or an image."""
REPAIR = OWN_PREFIX + "repair"
"""The name of an additional input. Its value for a row is the list of messages that follow the
prompt: an invalid answer, and what is wrong with it."""


def values_for_texts(inputs: Mapping[str, str], table: pa.Table) -> dict[str, list[Any]]:
    """Return the values of each input as Python objects, because the type of a value in a NumPy
    array depends on the other rows. `inputs` maps inputs to columns."""
    columns = {name: table.column(column) for name, column in inputs.items()}
    return {  # cast, because Python has no times in nanoseconds
        name: values_of(column.cast(pa.string()) if column.type == pa.time64("ns") else column)
        for name, column in columns.items()
    }


def rows_of(inputs: Mapping[str, Sequence[Any] | np.ndarray]) -> Iterator[dict[str, Any]]:
    """Return the rows of a batch as dicts that map each input's name to its value."""
    return (dict(zip(inputs, values, strict=True)) for values in zip(*inputs.values(), strict=True))


def fill_template(template: str, row: Mapping[str, Any]) -> str:
    """Return a template filled by a row. Raises ValueError for nulls, TypeError for bad fields."""
    text = ""
    for literal, field, _, _ in string.Formatter().parse(template):
        value = "" if field is None else json_compatible(placeholder_value(row, field))
        if value is None:
            raise ValueError(f"input '{field}' is null")
        text += f"{literal}{value}"
    return text


def placeholder_value(row: Mapping[str, Any], field: str) -> Any:
    """Return the value of a placeholder: an input, or a part of an input as in `{a.b}` or `{a[0]}`.
    Return None if that part is missing. Raises TypeError if the input has no such parts."""
    value = row[root_of(field)]
    for key in keys_of(field):
        if value is None or isinstance(value, SampleValue):
            break
        if isinstance(key, str) and isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(key, int) and isinstance(value, list | tuple | np.ndarray):
            value = value[key] if key < len(value) else None
        else:
            raise TypeError(f"'{{{field}}}': {type(value).__name__} has no part {key!r}")
    return value


class SampleValue(str):
    """A text that stands for a value of any type while a chat template is checked without rows."""


def json_compatible(value: Any) -> Any:
    """Return a value as types that JSON has. Bytes become base64, dates and times ISO 8601."""
    if isinstance(value, np.ndarray | np.generic):
        return json_compatible(value.tolist())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): json_compatible(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [json_compatible(child) for child in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def content_of(model: PromptSpec, row: Mapping[str, Any]) -> Any:
    """Return what a row asks the model: the filled prompt template. If there is no template, return
    the value of the only input in `_content_inputs`. Raises ValueError if a value is null."""
    if model.prompt is not None:
        return fill_template(model.prompt, row)
    (name,) = _content_inputs(model, row)
    value = json_compatible(row[name])
    if value is None:
        raise ValueError(f"input '{name}' is null")
    return value


def _content_inputs(model: PromptSpec, row: Mapping[str, Any]) -> set[str]:
    """Return those inputs of a row that no template uses and that are not images or REPAIR."""
    texts = [model.system, model.prompt, *(message.content for message in model.messages)]
    in_templates = {name for text in texts for name in placeholders(text or "")}
    return set(row) - in_templates - {*model.images, REPAIR}


def chat_content_of(model: PromptSpec, row: Mapping[str, Any]) -> Any:
    """Return `content_of` a row. A text of JSON messages becomes a list if there is no template."""
    content = content_of(model, row)
    is_template = model.prompt is not None or not isinstance(content, str)
    return content if is_template else _conversation_in(content) or content


def with_messages(model: PromptSpec, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a row. Texts with JSON messages that no template uses become lists."""
    texts = {name: row[name] for name in _content_inputs(model, row)}
    turns = {name: _conversation_in(text) for name, text in texts.items() if isinstance(text, str)}
    return {**row, **{name: messages for name, messages in turns.items() if messages}}


def _conversation_in(text: str) -> list[Any] | None:
    """Return the messages in a text; None if the text is not a JSON list of messages. Raises
    ValueError if an object has two fields of the same name, or the text is nested too deep."""
    if not (text.lstrip().startswith("[") and '"role"' in text):
        return None
    try:
        turns = load_unique(text)
    except json.JSONDecodeError:
        return None
    messages = all(isinstance(turn, dict) and "role" in turn for turn in turns)
    return list(turns) if messages else None


def text_of(model: PromptSpec, row: Mapping[str, Any]) -> str:
    """Return the prompt of a row as one text: `content_of` the row, and the texts of REPAIR. Raises
    TypeError if the content is not text."""
    content = content_of(model, row)
    if not isinstance(content, str):
        raise TypeError(f"expected text, got {type(content).__name__}")
    return with_repair(content, row)


def with_repair(prompt: str, row: Mapping[str, Any]) -> str:
    """Return a text prompt with the texts of the row's REPAIR messages appended."""
    return "\n\n".join([prompt, *(message["content"] for message in row.get(REPAIR, ()))])


def opening_messages(model: PromptSpec, row: Mapping[str, Any]) -> list[Message]:
    """Return the first messages of a row's chat: the system message and the examples."""
    templates = [("system", model.system)] if model.system else []
    templates += [(message.role, message.content) for message in model.messages]
    return [{"role": role, "content": fill_template(text, row)} for role, text in templates]


def messages_of(model: PromptSpec, row: Mapping[str, Any]) -> list[Message]:
    """Return the chat of a row in the OpenAI format, with images as URLs."""
    addresses = {name: {"url": data_uri(row[name])} for name in model.images}
    images = {name: {"type": "image_url", "image_url": url} for name, url in addresses.items()}
    return chat_of(model, row, images)


def chat_of(model: PromptSpec, row: Mapping[str, Any], images: Mapping[str, Part]) -> list[Message]:
    """Return the chat of a row: the opening messages, then the messages of the row, then those of
    REPAIR. An image that the prompt template names replaces its placeholder. Other images precede
    the text of the row's first message with the role `user`. Raises TypeError if the content is
    neither text nor a list of messages. Raises ValueError if the list is empty, or has no message
    for the images."""
    in_prompt = set(placeholders(model.prompt or ""))
    others = [part for name, part in images.items() if name not in in_prompt]
    turns = _row_messages(model, row, images)
    turns = _with_images(turns, others) if others else turns
    return [*opening_messages(model, row), *turns, *row.get(REPAIR, ())]


def _row_messages(
    model: PromptSpec, row: Mapping[str, Any], images: Mapping[str, Part]
) -> list[Message]:
    if not images.keys().isdisjoint(placeholders(model.prompt or "")):
        return [{"role": "user", "content": _parts_of_prompt(model.prompt or "", row, images)}]
    if describes_images(model):
        return [{"role": "user", "content": []}]
    content = chat_content_of(model, row)
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    if isinstance(content, list) and content:
        return [_message(turn) for turn in content]
    if isinstance(content, list):
        raise ValueError("the list of messages is empty")
    raise TypeError(f"expected text or a list of messages, got {type(content).__name__}")


def describes_images(model: PromptSpec) -> bool:
    """Return whether the model gets only images, without a prompt."""
    return model.prompt is None and set(model.inputs) == set(model.images)


def _parts_of_prompt(
    template: str, row: Mapping[str, Any], images: Mapping[str, Part]
) -> list[Part]:
    """Return the prompt as texts and images, in the order of the template."""
    parts: list[Part] = []
    text = ""
    for literal, name, _, _ in string.Formatter().parse(template):
        text += literal
        if name is not None and name in images:
            parts += [*([{"type": "text", "text": text}] if text else []), images[name]]
            text = ""
        elif name is not None:
            text += fill_template(f"{{{name}}}", row)
    return [*parts, *([{"type": "text", "text": text}] if text else [])]


def _message(value: Any) -> Message:
    """Return a message without null fields, which Arrow adds if other messages have the fields."""
    if not isinstance(value, dict) or not value.get("role"):
        raise TypeError("a message of the conversation is not an object with a 'role'")
    message: Message = _without_nulls(value)
    if isinstance(message.get("content"), list):
        message["content"] = [_without_nulls(part) for part in message["content"]]
    return message


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError("a part of a message's 'content' is not an object")
    return {name: child for name, child in value.items() if child is not None}


def _with_images(turns: list[Message], images: Sequence[Part]) -> list[Message]:
    for number, turn in enumerate(turns):
        if turn["role"] == "user":
            extended = {**turn, "content": [*images, *content_parts(turn.get("content"))]}
            return [*turns[:number], extended, *turns[number + 1 :]]
    raise ValueError("the conversation holds no message of the role 'user'")


def without_empty_answer(messages: list[Message]) -> list[Message]:
    """Return a chat without its last message if that is an empty answer of the assistant. Without
    it, the model begins an answer too. With it, a chat template may trim the end of the prompt."""
    *before, last = messages
    is_answer = last["role"] == "assistant" and last.keys() <= {"role", "content"}
    parts = content_parts(last.get("content"))
    is_empty = bool(parts) and all(part == {"type": "text", "text": ""} for part in parts)
    return before if before and is_answer and is_empty else messages


def template_options(messages: Sequence[Message]) -> dict[str, bool]:
    """Return the options of a chat template that decide how the prompt ends. The model continues a
    last message of the assistant, and otherwise begins a new answer. Raises ValueError if the last
    message is from the assistant and has no text."""
    continues = messages[-1]["role"] == "assistant"
    parts = content_parts(messages[-1].get("content"))
    if continues and not any("text" in part for part in parts):
        raise ValueError(
            "the last message is from the assistant, and has no text that the model can continue. "
            "Give it a text, or remove it"
        )
    return {"add_generation_prompt": not continues, "continue_final_message": continues}


def content_parts(content: Any) -> list[Part]:
    """Return a message's content as a list of parts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or [])


def data_uri(value: Any) -> str:
    """Return the URI of an image: a data URI, or the http or https URL itself. Pixels (height x
    width x channels, uint8) are encoded as PNG. The bytes of an image file are not changed. Raises
    ValueError for other strings and for too many pixels, OSError for bytes that are no image, and
    TypeError for other values."""
    from PIL import Image

    from batchinference.pipeline.media.images import open_image

    if isinstance(value, str):
        if not value.startswith(("http://", "https://", "data:")):
            raise ValueError("expected an image, got a text that is not an address")
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


def check_chat(
    model: PromptSpec,
    source: str,
    render: Callable[[list[Message]], Any],
    images: Mapping[str, Part] | None = None,
) -> None:
    """Raise ModelLoad if a chat template does not accept the messages of the job, because every row
    would fail. For example, it may have no system role. `render` applies the template to sample
    messages. `images` are their sample images by input."""
    row = {name: SampleValue("text") for name in model.inputs if name not in model.parameter_inputs}
    messages = chat_of(model, row, images or {})
    try:
        render(messages)
    except Exception as error:  # a template may raise any error
        raise ModelLoad(
            f"the chat template of '{source}' does not accept the messages of the job (system, "
            f"messages and prompt): {describe(error)}"
        ) from error
