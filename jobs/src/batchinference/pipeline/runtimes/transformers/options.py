"""Checks the names of the options of transformers models against the signatures of the library.

The library silently ignores most unknown options. A few parts, such as custom tokenizers, accept
names that are in no signature. Their options are not checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_args, is_typeddict

from transformers import GenerationConfig, Pipeline, PreTrainedTokenizerFast

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.flat_tokens import is_plain
from batchinference.spec.problems import did_you_mean

_NAMELESS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def pop_loading_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the options for loading a processor. The options of its calls remain."""
    return {name: options.pop(name) for name in ("backend", "use_fast") if name in options}


def check_options(options: Mapping[str, Any], known: set[str] | None) -> None:
    """Raise ModelLoad for an option that is not in `known`. With None, any option is accepted."""
    if known is None:
        return
    for name in options:
        if name in known:
            continue
        hint = did_you_mean(name, known)
        raise ModelLoad(f"options: transformers has no option '{name}' here{hint}")


def tokenizer_options(tokenizer: Any) -> set[str] | None:
    """Return the options of a tokenizer's calls; None if they are unknown, because the tokenizer is
    not a fast one or its class overrides the calls."""
    return _names(PreTrainedTokenizerFast.__call__) if is_plain(tokenizer) else None


def image_processor_options(processor: Any) -> set[str]:
    """Return the options of an image processor's calls."""
    kind = type(processor)
    return set(kind.valid_kwargs.__annotations__) | _names(kind.__call__, kind.preprocess)


def feature_extractor_options(extractor: Any) -> set[str]:
    """Return the options of a feature extractor's calls."""
    kind = type(extractor)
    return _names(kind.__call__, kind.pad) if hasattr(kind, "pad") else _names(kind.__call__)


def processor_options(processor: Any) -> set[str] | None:
    """Return the options of a processor's calls, including those for its tokenizer and its other
    parts; None if its signature does not list them."""
    call = inspect.signature(type(processor).__call__).parameters
    taken = next(iter(get_args(call["kwargs"].annotation)), None) if "kwargs" in call else None
    if not is_typeddict(taken):
        return None
    declared = taken.__annotations__
    kinds = [getattr(part, "valid_kwargs", None) for part in vars(processor).values()]
    parts = (kind.__annotations__ for kind in [*declared.values(), *kinds] if is_typeddict(kind))
    return _names(type(processor).__call__).union(declared, *parts)


def pipeline_options(pipeline: Any) -> set[str]:
    """Return the options of a pipeline's calls. They include those of `generate`, if the pipeline
    passes options on to a model that generates."""
    kind = type(pipeline)
    calls = [Pipeline.__call__, kind._sanitize_parameters]
    if not _accepts_any_name(kind._sanitize_parameters):
        return _names(*calls)
    names = _names(*calls, kind.preprocess, kind._forward, kind.postprocess)
    if not pipeline.model.can_generate():
        return names
    return names | {"generate_kwargs"} | _of_generation(pipeline.model)


def _of_generation(model: Any) -> set[str]:
    kind = type(model)
    calls = [kind.generate, kind.forward, kind.prepare_inputs_for_generation]
    if model.config.is_encoder_decoder:
        calls.append(type(model.get_encoder()).forward)
    return _names(*calls).union(vars(GenerationConfig()), vars(model.generation_config))


def _names(*calls: Any) -> set[str]:
    """Return the parameters of all calls that can be passed by name."""
    found = (inspect.signature(call).parameters.values() for call in calls)
    return {one.name for parameters in found for one in parameters if one.kind not in _NAMELESS}


def _accepts_any_name(call: Any) -> bool:
    return any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(call).parameters.values()
    )
