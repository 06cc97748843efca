"""What a language model is told: texts with places for a row's values."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName, SpecModel


def places(template: str) -> list[str]:
    """The names of a template's places, in their order: `{name}`. `{{` and `}}` stand for braces.

    Raises ValueError when it is no template.
    """
    names = []
    for _, name, form, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if form or conversion or not name or set(name) & set(".[]"):
            raise ValueError(f"'{{{name}' begins no place for an input")
        names.append(name)
    return names


def check_template(text: str) -> str:
    """The text. Raises when it is no template."""
    try:
        places(text)
    except ValueError as error:
        raise _error(
            f"{error}: an input's place is written {{name}}, a brace of the text itself twice"
        ) from None
    return text


Template = Annotated[str, Field(min_length=1, max_length=32768), AfterValidator(check_template)]
Images = Annotated[list[ColumnName], Field(max_length=16)]


class Message(SpecModel):
    role: Literal["system", "user", "assistant"]
    """Who says it."""
    content: Template
    """What is said, a template like the prompt."""


Messages = Annotated[list[Message], Field(max_length=32)]


class Prompted(Protocol):
    """The fields of a model's specification that define its prompt."""

    @property
    def inputs(self) -> dict[str, str]: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def system(self) -> str | None: ...
    @property
    def messages(self) -> list[Message]: ...
    @property
    def images(self) -> list[str]: ...


def check_prompt(
    model: Prompted, apart: Sequence[str] = (), *, images_suffice: bool = False
) -> None:
    """Raise if a template or `images` names no input, or an input is not used.

    `apart` are inputs that fields other than the prompt's use. Without a prompt, exactly one input
    must be left, which is sent as it is. With `images_suffice`, none may be left if there are
    images."""
    others = [*(message.content for message in model.messages), model.system or ""]
    prompt = [model.prompt or ""]
    for name in [*model.images, *apart]:
        _check_input(name, model.inputs)
    _check_places_of_images(model, others, prompt)
    used = {*_names_in([*others, *prompt], model.inputs), *model.images, *apart}
    left = [name for name in model.inputs if name not in used]
    if model.prompt is not None and left:
        raise _unused(left[0])
    alone = images_suffice and model.images and not any(others)
    if model.prompt is None and len(left) != 1 and (left or not alone):
        found = ", ".join(left) or "none is left"
        raise _error(f"without a 'prompt' one input is sent as it is; here {found}")


def check_body(inputs: Mapping[str, str], texts: Iterable[str], images: Iterable[str]) -> None:
    """Raise if `images` or a text of a request body names no input, or an input is not used."""
    for name in images:
        _check_input(name, inputs)
    used = _names_in(texts, inputs)
    if left := [name for name in inputs if name not in used]:
        raise _unused(left[0])


def _check_places_of_images(model: Prompted, others: list[str], prompt: list[str]) -> None:
    """Raise if a text would contain pixels as numbers."""
    pixels = {model.inputs[name] for name in model.images}
    for name in _names_in(others, model.inputs):
        if model.inputs[name] in pixels:
            raise _error(
                f"'{{{name}}}' is an image, and 'system' and 'messages' hold only text. Put the "
                "place into 'prompt'"
            )
    for name in _names_in(prompt, model.inputs):
        if model.inputs[name] in pixels and name not in model.images:
            raise _error(f"'{{{name}}}' is an image. Add '{name}' to 'images'")


def _names_in(texts: Iterable[str], inputs: Mapping[str, str]) -> list[str]:
    names = [name for text in texts for name in places(text)]
    for name in names:
        _check_input(name, inputs)
    return names


def _unused(name: str) -> PydanticCustomError:
    return _error(f"input '{name}' is used nowhere")


def _check_input(name: str, inputs: Mapping[str, str]) -> None:
    if name not in inputs:
        raise _error(f"'{name}' is none of the inputs, which are {', '.join(inputs)}")


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("template", "{message}", {"message": message})
