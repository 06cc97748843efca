"""Cuts prompts that are too long for vLLM, before its engine gets them. The engine itself can only
cut the beginning of a prompt, where the instructions are."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.model_files import files_without_weights, library_tokenizer
from batchinference.pipeline.runtimes.prompts import (
    messages_of,
    rows_of,
    text_of,
    values_for_texts,
    with_messages,
)
from batchinference.pipeline.runtimes.text_limits import (
    PromptLimit,
    Row,
    max_tokens,
    room_for_answer,
    token_count,
)
from batchinference.pipeline.runtimes.vllm.chat_template import apply_template
from batchinference.spec.models import VllmModel


def cut_to_fit(model: VllmModel, row: Row, texts: Row) -> tuple[Row, int]:
    """Cut the inputs `texts` of a row until its prompt fits the model. Return the inputs and the
    number of cut tokens. Raises TextTooLong, ValueError or ModelLoad if the prompt cannot fit."""
    if model.too_long not in ("truncate", "truncateLeft"):
        return texts, 0
    limit = _limit_of_row(model, row)
    inputs = with_messages(model, texts) if model.is_chat else texts
    values, _, cut = limit.fitted(
        inputs, lambda part: _prompt(model, limit.tokenizer, part), special=not model.is_chat
    )
    return ({**texts, **values}, cut) if cut else (texts, 0)


def _limit_of_row(model: VllmModel, row: Row) -> PromptLimit:
    """Return the limit of a row's prompt. Raises ValueError if `max_tokens` leaves no room."""
    limit = _limit(model.model_dump_json(by_alias=True))
    name = model.row_parameters.get("max_tokens")
    if name is None:
        return limit
    new = room_for_answer(limit.tokens) if row[name] is None else row[name]
    if new >= limit.tokens:
        raise ValueError(
            f"sampling.max_tokens: {new} tokens leave no room for a prompt, because "
            f"'{model.source}' takes {limit.tokens}. Use a smaller number as input '{name}'"
        )
    return replace(limit, tokens=limit.tokens - new)


def _prompt(model: VllmModel, tokenizer: Any, row: Mapping[str, Any]) -> str:
    if not model.is_chat:
        return text_of(model, row)
    return apply_template(model, tokenizer, messages_of(model, row))


def prompt_lengths(model: VllmModel, table: pa.Table) -> list[int] | None:
    """Return the number of tokens of the prompt of each row that has no nulls. Return None if only
    the engine knows these numbers. Raises errors of the library."""
    if model.images or model.task == "score" or model.request is not None:
        return None
    tokenizer = library_tokenizer(files_without_weights(model))
    rows = rows_of(dict(values_for_texts(model.inputs, table)))
    texts = [_prompt(model, tokenizer, row) for row in rows if None not in row.values()]
    special = not model.is_chat
    return [token_count(tokenizer, text, special=special) for text in texts]


@lru_cache(maxsize=8)
def _limit(document: str) -> PromptLimit:
    """Return the limit of the model in `document` (JSON). Cached, as it loads the tokenizer."""
    from transformers import AutoConfig

    model = VllmModel.model_validate_json(document)
    path = files_without_weights(model)
    tokenizer = library_tokenizer(path)
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    known = max_tokens(tokenizer, SimpleNamespace(config=config, named_modules=lambda: ()))
    length = model.engine.get("max_model_len") or known
    if not isinstance(length, int) or length < 1:
        raise ModelLoad(
            f"tooLong: '{model.source}' states no length. Set engine.max_model_len to a number"
        )
    of_row = model.task != "generate" or "max_tokens" in model.row_parameters
    new = 0 if of_row else model.sampling.get("max_tokens") or room_for_answer(length)
    if length <= new:
        raise ModelLoad(
            f"sampling.max_tokens: {new} tokens leave no room for a prompt, because "
            f"'{model.source}' takes {length}. Use a smaller number"
        )
    return PromptLimit(tokenizer, length - new, model.too_long == "truncateLeft")
