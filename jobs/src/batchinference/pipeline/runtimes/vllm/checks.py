"""Checks of models for vLLM that need no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchinference.pipeline.errors import ModelLoad, describe
from batchinference.pipeline.runtimes.chat_templates import check_chat
from batchinference.pipeline.runtimes.model_files import local_tokenizer
from batchinference.pipeline.runtimes.template_limits import limited
from batchinference.spec.models import VllmModel
from batchinference.spec.models.sampling import GENERATE, check_kind


def checks(model: VllmModel) -> None:
    """Raise ModelLoad if the chat template does not accept the messages of the job. Models whose
    tokenizer is not on this machine are checked when they are loaded."""
    if model.is_chat and not model.images:
        tokenizer = local_tokenizer(model.source, model.revision)
        if tokenizer is not None:
            check_template(model, tokenizer)


def check_template(model: VllmModel, processor: Any) -> None:
    """Raise ModelLoad if there is no chat template, or if it does not accept the messages of the
    job. With images, vLLM changes the messages first, so that they cannot be checked."""
    if model.images:
        return

    def render(messages: list[Any]) -> Any:
        return apply_template(model, processor, messages)

    try:
        check_chat(model, model.source, render)
    except ModelLoad:
        if model.chat_template or getattr(processor, "chat_template", None):
            raise
        raise ModelLoad(
            f"chat: model '{model.source}' has no chat template. Set 'chat' to false and put all "
            "text into 'prompt', or give the template in 'chatTemplate'"
        ) from None


def apply_template(model: VllmModel, processor: Any, messages: list[Any]) -> str:
    """Return the prompt that the chat template makes of messages."""
    asks = messages[-1]["role"] == "user"
    prompt: str = limited(processor.apply_chat_template)(
        messages,
        tokenize=False,
        chat_template=model.chat_template,
        add_generation_prompt=asks,
        continue_final_message=not asks,
        **model.chat_template_args,
    )
    return prompt


def parameters_of(model: VllmModel) -> Any:
    """Return vLLM's parameters of all rows. Raises ModelLoad if the installed vLLM does not accept
    the values of `sampling`."""
    try:
        return _parameters(model, {})
    except Exception as error:
        raise ModelLoad(f"sampling: vLLM does not accept it: {describe(error)}") from error


def parameters_of_row(model: VllmModel, row: Mapping[str, Any]) -> Any:
    """Return vLLM's parameters of a row, with its own values. Raises ValueError."""
    values = {name: row[column] for name, column in model.row_parameters.items()}
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        check_kind(name, value, GENERATE[name])
    return _parameters(model, given)


def _parameters(model: VllmModel, of_row: Mapping[str, Any]) -> Any:
    import vllm
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    of_rows = model.row_parameters
    values = {name: value for name, value in model.sampling.items() if name not in of_rows}
    if model.task != "generate":
        return vllm.PoolingParams(**values, task="embed" if model.task == "embed" else "classify")
    if constraint := values.pop("structured_outputs", None):
        values["structured_outputs"] = StructuredOutputsParams(**constraint)
    return vllm.SamplingParams(**values, **of_row, output_kind=RequestOutputKind.FINAL_ONLY)
