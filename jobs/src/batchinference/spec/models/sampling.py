"""Checks the field `sampling` before a model is loaded: names, types, and parameters whose results
would be lost. A number may be an input of the row, as `{input}`."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from pydantic.alias_generators import to_snake
from pydantic_core import PydanticCustomError

from batchinference.spec.base import invalid
from batchinference.spec.models.prompts import placeholders
from batchinference.spec.problems import did_you_mean, type_name
from batchinference.spec.value_fixes import above_max


class Kind(NamedTuple):
    """The type of a parameter, as text and as a check."""

    expected: str
    fits: Callable[[Any], bool]


def _is(value: Any, *types: type) -> bool:
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(_is(item, kind) for item in value)


_NUMBER = Kind("a number", lambda value: _is(value, int, float))
_WHOLE = Kind("a whole number", lambda value: _is(value, int))
_FLAG = Kind("true or false", lambda value: _is(value, bool))
_TEXT = Kind("a text", lambda value: _is(value, str))
_TEXTS = Kind("a list of texts", _list_of(str))
_TEXT_OR_LIST = Kind("a text or a list of texts", lambda v: _TEXT.fits(v) or _TEXTS.fits(v))
_TOKENS = Kind("a list of token ids", _list_of(int))
_MAPPING = Kind("a mapping", lambda value: _is(value, dict))
_SCHEMA = Kind("a mapping or a text", lambda value: _is(value, dict, str))

GENERATE: dict[str, Kind] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _NUMBER),
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k", "seed"), _WHOLE),
    **dict.fromkeys(("n", "logprobs", "thinking_token_budget"), _WHOLE),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"), _FLAG),
    **dict.fromkeys(("spaces_between_special_tokens", "skip_reading_prefix_cache"), _FLAG),
    "stop": _TEXT_OR_LIST,
    "bad_words": _TEXTS,
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), _TOKENS),
    **dict.fromkeys(("structured_outputs", "extra_args"), _MAPPING),
}
"""The SamplingParams of vLLM 0.29 that a job can set."""
EMBED: dict[str, Kind] = {"dimensions": _WHOLE, "use_activation": _FLAG}
"""The PoolingParams of vLLM that embeddings have."""
CLASSIFY: dict[str, Kind] = {"use_activation": _FLAG}
"""The PoolingParams of vLLM that classes and scores have."""
_OF_TASK = {"generate": GENERATE, "embed": EMBED, "classify": CLASSIFY, "score": CLASSIFY}
CONSTRAINTS: dict[str, Kind] = {
    **dict.fromkeys(("regex", "grammar", "structural_tag"), _TEXT),
    "json": _SCHEMA,
    "choice": _TEXTS,
    "json_object": _FLAG,
}
"""The constraints of `structured_outputs`. A request has exactly one of them."""
WITHOUT_EFFECT = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
"""Options of `structured_outputs` that the engine does not read from a request."""
NULLABLE = {
    *("max_tokens", "seed", "stop", "stop_token_ids", "bad_words", "allowed_token_ids"),
    *("structured_outputs", "extra_args", "thinking_token_budget", "skip_reading_prefix_cache"),
    "logprobs",
    *EMBED,
}
"""The parameters that may be null."""
_ONE_TEXT = "a row has one text, and the others would be lost"
_ONLY_TEXT = "the output is a text, and other results would be lost"
_NO_EFFECT = "it has no effect on the text of a row"
_NEEDS_OBJECTS = "vLLM takes values that a job's file cannot hold"
LOST: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("prompt_logprobs", "logprob_token_ids"), (None, _ONLY_TEXT)),
    "flat_logprobs": (False, _ONLY_TEXT),
    "routed_experts_prompt_start": (0, _ONLY_TEXT),
    "detokenize": (True, "without it, the text of a row is empty"),
    "trace_decode_token_ids": (None, "with it, the text does not depend on the row"),
    **dict.fromkeys(("output_kind", "stream_interval"), (None, _NO_EFFECT)),
    **dict.fromkeys(("skip_clone", "output_text_buffer_length"), (None, _NO_EFFECT)),
    **dict.fromkeys(("logit_bias", "repetition_detection"), (None, _NEEDS_OBJECTS)),
}
"""By refused parameter of vLLM: the value that changes nothing, and why others are refused."""
_STRUCTURED = "structured_outputs: {%s: ...}"
_CUT = {"truncate_prompt_tokens": "the model's field tooLong"}
_INSTEAD = {
    **_CUT,
    **dict.fromkeys(("max_new_tokens", "max_length", "max_completion_tokens"), "max_tokens"),
    **dict.fromkeys(("min_new_tokens", "min_length"), "min_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop"),
    **dict.fromkeys(("guided_json", "response_format"), _STRUCTURED % "json"),
    **{f"guided_{name}": _STRUCTURED % name for name in ("choice", "regex", "grammar")},
    "guided_decoding": "structured_outputs",
    "temp": "temperature",
    "eos_token_id": "stop_token_ids",
    "bad_words_ids": "bad_words",
    "num_return_sequences": "n",
    "do_sample": "temperature (0 for the most likely tokens)",
    "chat_template_kwargs": "the model's field chatTemplateArgs",
}
"""Parameters of other libraries or versions, and what vLLM has instead."""
_INSTEAD_OF_POOLING = {**_CUT, "normalize": "use_activation"}
_NOTHING_INSTEAD = ("best_of", "num_beams", "use_beam_search")
_WITH_TEXTS = (
    *("return_dict_in_generate", "output_scores", "output_logits", "output_attentions"),
    "output_hidden_states",
)
TRANSFORMERS_LOST = dict.fromkeys(_WITH_TEXTS, (False, _ONLY_TEXT))
HTTP_LOST = {
    **dict.fromkeys(("messages", "prompt", "input"), (None, "the job makes it for each row")),
    "model": (None, "the field 'name' names the model"),
    "n": (1, _ONE_TEXT),
    "stream": (False, "an answer is read as a whole"),
    "logprobs": (False, _ONLY_TEXT),
    "top_logprobs": (0, _ONLY_TEXT),
    "encoding_format": ("float", "an embedding is read as numbers"),
}


_PAIRS = (
    ("min_tokens", "max_tokens"),
    ("min_new_tokens", "max_new_tokens"),
    ("min_length", "max_length"),
)
"""Parameters for a minimum and a maximum, of all libraries."""


def check_bounds(sampling: Mapping[str, Any]) -> None:
    """Raise a validation error if a minimum is above its maximum. Values of rows are not known, and
    for some endpoints, a maximum of -1 is no limit."""
    for low, high in _PAIRS:
        bounds: tuple[Any, Any] = (sampling.get(low), sampling.get(high))
        if all(map(_WHOLE.fits, bounds)) and bounds[0] > bounds[1] >= 0:
            raise invalid(f"sampling: {above_max(*bounds, low, high)}")


def check_vllm(task: str, sampling: Mapping[str, Any]) -> None:
    """Raise a validation error for a parameter that vLLM does not have, that has a wrong type, or
    whose results would be lost. Errors do not show values, which may be secret."""
    known, lost = _OF_TASK[task], LOST if task == "generate" else {}
    check_lost(sampling, lost)
    check_bounds(sampling)
    of_rows = row_parameters(sampling)
    for name, value in sampling.items():
        if name in lost:
            continue
        if name not in known:
            raise _unknown(name, task)
        if name not in of_rows and (value is not None or name not in NULLABLE):
            check_kind(name, value, known[name])
    if sampling.get("structured_outputs") is not None:
        _check_constraints(sampling["structured_outputs"])


def check_openai(sampling: Mapping[str, Any]) -> None:
    """Raise a validation error for a parameter that an OpenAI API would ignore or refuse, or that
    replaces what the job sends. Unknown names are valid: an endpoint may have its own."""
    check_lost(sampling, HTTP_LOST)
    check_bounds(sampling)
    for name, value in sampling.items():
        if name not in GENERATE and (snake := to_snake(name)) in GENERATE:
            raise invalid(f"sampling: the API has no parameter '{name}'. Write {snake}")
        if GENERATE.get(name) in (_NUMBER, _WHOLE) and isinstance(value, str):
            check_kind(name, value, GENERATE[name])


def row_parameters(sampling: Mapping[str, Any]) -> dict[str, str]:
    """Return the input of each parameter of vLLM whose value is `{input}`. Only numbers can be
    inputs, but not `n` and `logprobs`, which change the type or number of results."""
    return {
        name: value[1:-1]
        for name, value in sampling.items()
        if GENERATE.get(name) in (_NUMBER, _WHOLE)
        and name not in ("n", "logprobs")
        and isinstance(value, str)
        and _is_input(value)
    }


def _is_input(value: str) -> bool:
    try:
        return [f"{{{name}}}" for name in placeholders(value)] == [value]
    except ValueError:
        return False


def check_lost(sampling: Mapping[str, Any], lost: Mapping[str, tuple[Any, str]]) -> None:
    """Raise a validation error for a parameter in `lost`, unless its value changes nothing."""
    for name in sampling.keys() & lost.keys():
        neutral, reason = lost[name]
        if sampling[name] not in (neutral, None):
            raise invalid(f"sampling.{name}: {reason}. Remove it")


def check_kind(name: str, value: Any, kind: Kind) -> None:
    """Raise a validation error, without showing `value`, if it is not finite or not of the kind."""
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if kind.fits(value) and is_finite:
        return
    got = type_name(value) if is_finite else "NaN or infinity"
    row = isinstance(value, str) and "{" in value
    fix = ". Write a value: only a number can be an input of the row, as {input}" if row else ""
    raise invalid(f"sampling.{name}: expected {kind.expected}, got {got}{fix}")


def _check_constraints(constraints: Mapping[str, Any]) -> None:
    where = "sampling.structured_outputs"
    for name, value in constraints.items():
        if name in WITHOUT_EFFECT:
            raise invalid(
                f"{where}.{name}: the engine does not read it from a request. Set it in "
                "engine.structured_outputs_config, with a backend"
            )
        if name not in CONSTRAINTS:
            raise invalid(f"{where}: vLLM has no constraint '{name}'{_near(name, CONSTRAINTS)}")
        check_kind(f"structured_outputs.{name}", value, CONSTRAINTS[name])
    if len(constraints) != 1:
        raise invalid(
            f"{where}: expected one of {', '.join(CONSTRAINTS)}, got {len(constraints)} of them"
        )


def _unknown(name: str, task: str) -> PydanticCustomError:
    problem = f"sampling: vLLM has no parameter '{name}'"
    if task != "generate" and name in GENERATE:
        return invalid(f"{problem} for task {task}. Remove it")
    if name in _NOTHING_INSTEAD:
        return invalid(f"{problem}. Remove it")
    instead = (_INSTEAD if task == "generate" else _INSTEAD_OF_POOLING).get(name)
    fix = f". Use {instead}" if instead else _near(name, _OF_TASK[task])
    return invalid(problem + fix)


def _near(name: str, known: Collection[str]) -> str:
    return did_you_mean(to_snake(name), known) or f". Use one of {', '.join(known)}"
