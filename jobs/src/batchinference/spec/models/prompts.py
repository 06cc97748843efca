"""Prompts of language models: templates with placeholders for the values of a row."""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName, SpecModel, invalid
from batchinference.spec.expression import root_of
from batchinference.spec.problems import did_you_mean

_FIELD = re.compile(r"([^.\[\]]+)((?:\.\w+|\[\d+\]|\['[^']+'\])*)")
"""Matches the name of an input, and which of its fields and items are read."""


def placeholders(template: str) -> list[str]:
    """Return the input that each placeholder in a template reads, in order. Raises ValueError if
    the template is invalid."""
    return [root_of(field) for field in fields_in(template)]


def fields_in(template: str) -> list[str]:
    """Return the content of each placeholder in a template, in order. Examples are an input `name`,
    and a part of its value such as `name.field` or `name[0]`.

    `{{` and `}}` are literal braces. Raises ValueError if the template is invalid.
    """
    names = []
    for _, name, format_spec, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if (format_spec or conversion) and name.isidentifier() and (format_spec or "")[:1] != " ":
            end = f"!{conversion}" if conversion else f":{format_spec}"
            raise ValueError(
                f"'{{{name}{end}}}' has a format, and a placeholder has none. Write {{{name}}}, or "
                "{NAME} for a column that a step addColumns computes, such as round(COLUMN, 2)"
            )
        if format_spec or conversion or not _FIELD.fullmatch(name):
            raise ValueError(
                f"'{{{name}' does not begin a valid placeholder. {_placeholder_fix(name)}"
            )
        names.append(name)
    return names


def _placeholder_fix(name: str) -> str:
    field = re.sub(r"""\[["']?(\w+)["']?\]""", r".\1", name)
    if _FIELD.fullmatch(field) and field != name:
        return f"Write {{{field}}}"
    if re.match(r"\w+[.(\[ +*/-]", name):
        return "Write {NAME} for a column that a step addColumns computes"
    return "Write {name} for an input, {name.field} for a field of it, and double a literal brace"


def check_template(text: str) -> str:
    """Return the text. Raises a validation error if it is not a valid template."""
    try:
        placeholders(text)
    except ValueError as error:
        fix = "" if ". " in str(error) else f". {_placeholder_fix('')}"  # Python's message has none
        raise invalid(f"{error}{fix}") from None
    return text


Template = Annotated[str, Field(min_length=1, max_length=32768), AfterValidator(check_template)]
Images = Annotated[list[ColumnName], Field(max_length=16)]


FieldText: TypeAlias = tuple[str, str]
"""The name of a field, and its text."""


class Message(SpecModel):
    role: Literal["system", "user", "assistant"]
    """The role of the author of the message."""
    content: Template
    """The template of the message, with the same syntax as `prompt`."""


Messages = Annotated[list[Message], Field(max_length=32)]


class PromptSpec(Protocol):
    """The fields of a model that define its prompt."""

    @property
    def inputs(self) -> dict[str, str]:
        """The columns, by the names that templates use."""

    @property
    def prompt(self) -> str | None:
        """The template of the prompt; None if an input is sent unchanged."""

    @property
    def system(self) -> str | None:
        """The template of the system message."""

    @property
    def messages(self) -> list[Message]:
        """The messages of the chat between `system` and `prompt`."""

    @property
    def images(self) -> list[str]:
        """The inputs that are images."""

    @property
    def parameter_inputs(self) -> tuple[str, ...]:
        """The inputs that are settings of a row, and not parts of the prompt."""


def columns_of_prompt(model: PromptSpec) -> tuple[str, ...]:
    """Return the columns whose texts are in a prompt, in the order of the prompt."""
    texts = [model.system or "", *(message.content for message in model.messages)]
    named = [name for text in [*texts, model.prompt or ""] for name in placeholders(text)]
    others = {*model.images, *model.parameter_inputs}
    names = dict.fromkeys([*named, *model.inputs])
    return tuple(model.inputs[name] for name in names if name not in others)


def check_prompt(
    model: PromptSpec, other_inputs: Sequence[str] = (), *, images_suffice: bool = False
) -> None:
    """Raise a validation error if a template or `images` refers to an unknown input, or if an input
    is not used.

    `other_inputs` are used by fields outside of the prompt. A model without a prompt must have
    exactly one input that no field uses: this input is sent unchanged. With `images_suffice`, a
    model with only images needs no such input.
    """
    messages = [(f"messages[{at}]", each.content) for at, each in enumerate(model.messages)]
    others = [*messages, ("system", model.system or "")]
    prompt = [("prompt", model.prompt or "")]
    for name in [*model.images, *other_inputs]:
        _check_input(name, model.inputs)
    _check_image_placeholders(model, others, prompt)
    used_names = {*_names_in([*others, *prompt], model.inputs), *model.images, *other_inputs}
    unused = [name for name in model.inputs if name not in used_names]
    if model.prompt is not None and unused:
        raise _unused(unused[0], [*others, *prompt], "prompt")
    only_images = images_suffice and model.images and not any(text for _, text in others)
    if model.prompt is None and len(unused) != 1 and (unused or not only_images):
        listed = ", ".join(unused) or "none is left"
        raise invalid(f"without a 'prompt', exactly one input is sent; here {listed}")


def check_body(inputs: Mapping[str, str], texts: Iterable[str], images: Iterable[str]) -> None:
    """Raise a validation error if `images` or a body has unknown inputs, or an input is unused."""
    for name in images:
        _check_input(name, inputs)
    bodies = [("body", text) for text in texts]
    used_names = _names_in(bodies, inputs)
    if unused := [name for name in inputs if name not in used_names]:
        raise _unused(unused[0], bodies, "body")


def _check_image_placeholders(
    model: PromptSpec, others: Sequence[FieldText], prompt: Sequence[FieldText]
) -> None:
    """Raise a validation error if a placeholder would put the pixels of an image into a text."""
    pixels = {model.inputs[name] for name in model.images}
    for name in _names_in(others, model.inputs):
        if model.inputs[name] in pixels:
            raise invalid(
                f"'{{{name}}}' is an image, and 'system' and 'messages' hold only text. Put it "
                "into 'prompt'"
            )
    for name in _names_in(prompt, model.inputs):
        if model.inputs[name] in pixels and name not in model.images:
            raise invalid(f"'{{{name}}}' is an image. Add '{name}' to 'images'")


def _names_in(texts: Sequence[FieldText], inputs: Mapping[str, str]) -> list[str]:
    names = [(field, name) for field, text in texts for name in placeholders(text)]
    for field, name in names:
        _check_input(name, inputs, field)
    return [name for _, name in names]


def _unused(name: str, texts: Sequence[FieldText], owner: str) -> PydanticCustomError:
    for field, text in texts:
        if re.search(rf"\{{\{{ *{name} *\}}\}}", text):
            return invalid(f"{field}: {{{{{name}}}}} is the text '{{{name}}}'. Write {{{name}}}")
        if re.fullmatch(r"[\w./~-]+\.(?:txt|md|j2|jinja2?|prompt)", text):
            fix = f"Write the text of the file here, with {{{name}}} for the input"
            return invalid(f"{field}: a path is not a prompt, got '{text}'. {fix}")
    return invalid(
        f"input '{name}' is not used. Write {{{name}}} in the {owner}, or remove the input"
    )


def _check_input(name: str, inputs: Mapping[str, str], field: str = "") -> None:
    if name not in inputs:
        fields = ", ".join(f"{key}: {column}" for key, column in {**inputs, name: name}.items())
        others = f". Write inputs: {{{fields}}}, or use {', '.join(inputs)}"
        known = did_you_mean(name, inputs) or others
        what = f"{field}: {{{name}}}" if field else f"'{name}'"
        raise invalid(f"{what} is not an input{known}")
