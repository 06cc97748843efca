"""Applies the chat template of a model for vLLM, and checks that it accepts the job's messages."""

from functools import partial
from typing import Any

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.prompts import (
    check_chat,
    template_options,
    without_empty_answer,
)
from batchinference.spec.models import VllmModel


def check_template(model: VllmModel, processor: Any) -> None:
    """Raise ModelLoad if there is no chat template, or if it does not accept the messages of the
    job. Messages with images are not checked, because vLLM changes them first."""
    if model.images:
        return
    try:
        check_chat(model, model.source, partial(apply_template, model, processor))
    except ModelLoad:
        if model.chat_template or getattr(processor, "chat_template", None):
            raise
        raise ModelLoad(
            f"chat: model '{model.source}' has no chat template. Set 'chat' to false and put all "
            "text into 'prompt', or give the template in 'chatTemplate'"
        ) from None


def apply_template(model: VllmModel, processor: Any, messages: list[Any]) -> str:
    """Return the prompt for a chat. Raises ValueError if `template_options` does."""
    messages = without_empty_answer(messages)
    prompt = processor.apply_chat_template(
        messages,
        tokenize=False,
        chat_template=model.chat_template,
        **template_options(messages),
        **model.chat_template_args,
    )
    return str(prompt)
