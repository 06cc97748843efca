"""Checks of models for vLLM that need no weights."""

from __future__ import annotations

from typing import Any

from batchinference.pipeline.runtimes.chat_templates import check_chat
from batchinference.pipeline.runtimes.model_files import local_tokenizer
from batchinference.spec.models import VllmModel


def checks(model: VllmModel) -> None:
    """Raise ModelLoad if the chat template does not accept the messages of the job. Models whose
    tokenizer is not on this machine are checked when they are loaded."""
    if model.is_chat and not model.images:
        tokenizer = local_tokenizer(model.source, model.revision)
        if tokenizer is not None:
            check_template(model, tokenizer)


def check_template(model: VllmModel, processor: Any) -> None:
    """Raise ModelLoad if a chat template does not accept the messages of the job. With images, vLLM
    changes the messages first, so that they cannot be checked."""
    if model.images:
        return

    def render(messages: list[Any]) -> Any:
        return apply_template(model, processor, messages)

    check_chat(model, model.source, render)


def apply_template(model: VllmModel, processor: Any, messages: list[Any]) -> str:
    """Return the prompt that Ray's stage makes of messages."""
    asks = messages[-1]["role"] == "user"
    prompt: str = processor.apply_chat_template(
        messages,
        tokenize=False,
        chat_template=model.chat_template,
        add_generation_prompt=asks,
        continue_final_message=not asks,
        **model.chat_template_args,
    )
    return prompt
