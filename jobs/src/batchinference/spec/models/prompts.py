"""What a language model is told: texts with places for a row's values."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

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


def check_images(inputs: Mapping[str, str], images: Iterable[str]) -> None:
    """Raise when an image is no input."""
    for name in images:
        _check_input(name, inputs)


def check_no_image_in(
    inputs: Mapping[str, str], images: Iterable[str], texts: Iterable[str]
) -> None:
    """Raise when a text has a place for an image: its pixels would become numbers there."""
    pixels = {inputs.get(name) for name in images}
    for name in (name for text in texts for name in places(text)):
        if name in inputs and inputs[name] in pixels:
            raise _error(
                f"'{{{name}}}' is an image, which cannot be written into a text: leave the place "
                "out. The model sees all 'images' before the prompt"
            )


def check_inputs(
    inputs: Mapping[str, str],
    texts: Iterable[str],
    images: Iterable[str] = (),
    prompt: str | None = None,
) -> None:
    """Raise when a text names no input, or an input goes nowhere.

    An empty prompt stands for none: then the one input that no text names and that is no image
    is sent as it is. Where there can be no prompt, it is None.
    """
    used = [name for text in [*texts, prompt or ""] for name in places(text)]
    for name in used:
        _check_input(name, inputs)
    left = [name for name in inputs if name not in {*used, *images}]
    if prompt != "" and left:
        raise _error(f"input '{left[0]}' is used nowhere")
    if prompt == "" and len(left) != 1:
        found = ", ".join(left) or "none is left"
        raise _error(f"without a 'prompt' one input is sent as it is; here {found}")


def _check_input(name: str, inputs: Mapping[str, str]) -> None:
    if name not in inputs:
        raise _error(f"'{name}' is none of the inputs, which are {', '.join(inputs)}")


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("template", "{message}", {"message": message})
