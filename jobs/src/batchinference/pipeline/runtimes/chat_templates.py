"""Checks that the chat template of a model accepts the messages of a job.

The template is rendered once with sample values. Otherwise, a template that has no system role, or
requires that roles alternate, would fail every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchinference.pipeline.errors import ModelLoad, describe
from batchinference.pipeline.runtimes.prompts import Message, Part, chat_of
from batchinference.spec.models.prompts import PromptSpec

Render = Callable[[list[Message]], Any]
_SAMPLE = "text"
_FIXES = {
    "system": "Remove 'system', and put its text into 'prompt'",
    "messages": "Let the roles user and assistant alternate, beginning with user, or put the "
    "examples into 'prompt'",
    "prompt": "Name a model that was trained for chats, or give it a chat template",
}


def check_chat(
    model: PromptSpec, source: str, render: Render, images: Mapping[str, Part] | None = None
) -> None:
    """Raise ModelLoad if a chat template does not accept the messages of a job. `render` applies
    it, and `images` are samples of the images."""
    row = {name: _SAMPLE for name in model.inputs if name not in model.parameter_inputs}
    messages = chat_of(model, row, images or {})
    problem = _problem(render, messages)
    if problem is None:
        return
    field = _field(model, messages, render)
    raise ModelLoad(
        f"{field}: the chat template of '{source}' does not accept the messages of the job "
        f"({describe(problem)}). {_FIXES[field]}"
    ) from problem


def _field(model: PromptSpec, messages: list[Message], render: Render) -> str:
    """Return the field without whose messages the template works."""
    system = [message for message in messages[:1] if model.system]
    others, last = messages[len(system) :], messages[-1:]
    if model.system and _problem(render, others) is None:
        return "system"
    if model.messages and _problem(render, [*system, *last]) is None:
        return "messages"
    return "system" if model.system and _problem(render, last) is None else "prompt"


def _problem(render: Render, messages: list[Message]) -> Exception | None:
    """Return the error of a template; None if it accepts the messages."""
    try:
        render(messages)
    except Exception as error:  # noqa: BLE001 - a template may raise any error
        return error
    return None
