"""Checks of models for vLLM that need no weights."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from batchinference.pipeline.errors import ModelLoad, describe
from batchinference.pipeline.runtimes.model_files import local_tokenizer
from batchinference.pipeline.runtimes.prompts import check_chat
from batchinference.spec.models import VllmModel
from batchinference.spec.models.sampling import GENERATE, check_kind
from batchinference.spec.problems import did_you_mean


def checks(model: VllmModel) -> None:
    """Raise ModelLoad if vLLM has no such engine arguments, or if the chat template does not accept
    the messages of the job. Models whose tokenizer is not on this machine are checked when they are
    loaded."""
    known = {*fields_of("engine.arg_utils", "EngineArgs", "AsyncEngineArgs")}
    for name in model.engine if known else ():
        if name not in known:
            similar = [other for other in known if other.startswith(name.partition("_")[0])]
            raise ModelLoad(f"engine: vLLM has no argument '{name}'{did_you_mean(name, similar)}")
    if model.is_chat and not model.images and model.request is None:
        tokenizer = local_tokenizer(model.source, model.revision)
        if tokenizer is not None:
            check_template(model, tokenizer)


def fields_of(module: str, *names: str) -> dict[str, str]:
    """Return the fields of classes of the installed vLLM, and their types; empty if there is no
    such module. Reads the source, because an import takes up to minutes."""
    (package,) = getattr(find_spec("vllm"), "submodule_search_locations", None) or [""]
    source = Path(package, *module.split(".")).with_suffix(".py")
    if not source.exists():
        return {}
    tree = ast.parse(source.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if getattr(node, "name", None) in names]
    body = [node for each in classes for node in getattr(each, "body", ())]
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}


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
    prompt: str = processor.apply_chat_template(
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
    if model.answer_schema is not None:
        values["structured_outputs"] = {"json": json.dumps(model.answer_schema.document)}
    if constraint := values.pop("structured_outputs", None):
        values["structured_outputs"] = StructuredOutputsParams(**constraint)
    # the engine copies the parameters for each row, by default with all they refer to
    own = {"output_kind": RequestOutputKind.FINAL_ONLY, "skip_clone": True}
    # without a limit, a text ends at the context of the model, and not after 16 tokens
    return vllm.SamplingParams(**{"max_tokens": None, **values, **of_row, **own})
