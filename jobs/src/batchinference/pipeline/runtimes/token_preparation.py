"""Loads the tokenizer of a model without the model, for the tasks that prepare texts for a pool."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils.hub import cached_file

from batchinference.pipeline.runtimes.flat_tokens import FlatTokenizer
from batchinference.pipeline.runtimes.model_files import files_without_weights
from batchinference.spec.models import SentenceTransformersModel, TransformersModel

_PROMPTS = "config_sentence_transformers.json"
_NOT_FOR_TOKENS = ("backend", "max_length", "padding", "truncation", "use_fast")
"""The options of a model that do not change the tokens of its texts before they are cut."""


def load_preparation(model: TransformersModel | SentenceTransformersModel) -> FlatTokenizer | None:
    """Return the tokenizer of a model. None if it cannot be loaded here, or does not give flat
    tokens: then the replicas tokenize. They say what is wrong with a model, and do not use tokens
    that differ from theirs."""
    try:
        folder = files_without_weights(model)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if isinstance(model, SentenceTransformersModel):
            return FlatTokenizer.of(tokenizer, prefix=_prompt(model, folder))
    except Exception:  # noqa: BLE001 - libraries raise any error
        return None
    options = {name: x for name, x in model.options.items() if name not in _NOT_FOR_TOKENS}
    return FlatTokenizer.of(tokenizer, options)


def _prompt(model: SentenceTransformersModel, folder: str) -> str:
    """Return the text that the library adds before each text."""
    if model.prompt is not None:
        return model.prompt
    file = cached_file(folder, _PROMPTS, _raise_exceptions_for_missing_entries=False)
    settings = json.loads(Path(file).read_text()) if file else {}
    name = model.prompt_name or settings.get("default_prompt_name")
    prompt: str | None = (settings.get("prompts") or {}).get(name)
    return prompt or ""
