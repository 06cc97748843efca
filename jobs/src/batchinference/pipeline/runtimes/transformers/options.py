"""Checks the names of options, because the library silently drops most options it does not know.

The known names come from the library's own signatures. Some code, such as the tokenizers of some
models, takes names that no signature has. There, any name is accepted.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_args, is_typeddict

from transformers import GenerationConfig, Pipeline, PreTrainedTokenizerFast

from batchinference.pipeline.errors import ModelLoad
from batchinference.spec.problems import did_you_mean


def check_options(given: Mapping[str, Any], known: set[str] | None) -> None:
    """Raise ModelLoad for an option that is not in `known`. With None, any option is accepted."""
    if known is None:
        return
    for name in given:
        if name in known:
            continue
        hint = did_you_mean(name, known)
        raise ModelLoad(f"options: transformers has no option '{name}' here{hint}")


def of_tokenizer(tokenizer: Any) -> set[str] | None:
    own = PreTrainedTokenizerFast
    kind = type(tokenizer)
    if kind.__call__ is not own.__call__ or kind._encode_plus is not own._encode_plus:
        return None
    return _names(own.__call__)


def of_image_processor(processor: Any) -> set[str]:
    kind = type(processor)
    return set(kind.valid_kwargs.__annotations__) | _names(kind.__call__, kind.preprocess)


def of_feature_extractor(extractor: Any) -> set[str]:
    kind = type(extractor)
    return _names(kind.__call__, kind.pad) if hasattr(kind, "pad") else _names(kind.__call__)


def of_processor(processor: Any) -> set[str] | None:
    """Return the names of the processor's options, including those that it passes to its tokenizer
    and its other parts. Return None if its signature does not list them."""
    call = inspect.signature(type(processor).__call__).parameters
    taken = next(iter(get_args(call["kwargs"].annotation)), None) if "kwargs" in call else None
    if not is_typeddict(taken):
        return None
    own = taken.__annotations__
    kinds = [getattr(part, "valid_kwargs", None) for part in vars(processor).values()]
    parts = (kind.__annotations__ for kind in [*own.values(), *kinds] if is_typeddict(kind))
    return _names(type(processor).__call__).union(own, *parts)


def of_pipeline(pipeline: Any) -> set[str]:
    """Return the options of the pipeline's task. If the task passes options on to a model that
    generates, include those of `generate`."""
    kind = type(pipeline)
    calls = [Pipeline.__call__, kind._sanitize_parameters]
    if not _takes_any(kind._sanitize_parameters):
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
    return {each.name for some in found for each in some if each.kind not in _NAMELESS}


def _takes_any(call: Any) -> bool:
    return any(
        each.kind is inspect.Parameter.VAR_KEYWORD
        for each in inspect.signature(call).parameters.values()
    )


_NAMELESS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
