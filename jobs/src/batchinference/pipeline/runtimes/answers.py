"""The answers of language models: their texts, their tokens, and why each text ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.spec.models.generation import GeneratingModel
from batchinference.spec.warnings import WarningName

NO_ANSWER = ("abort", "error")
"""Finish reasons of requests without a complete text."""
MAX_TOKENS = 2**31
"""Numbers of tokens above this one are ignored, because an endpoint cannot have used so many."""


@dataclass(frozen=True)
class Text:
    """A generated text. Unknown values are None. `more` has further values for `details`."""

    text: str
    completion_tokens: int | None
    finish_reason: str | None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The texts for a row, and the number of tokens of its prompt. Unknown numbers are None."""

    texts: Sequence[Text]
    prompt_tokens: int | None
    cached_tokens: int | None = None


def result_of(model: GeneratingModel, row: int, answer: Answer) -> Any:
    """Return the result of a row: its text, or a list if the model makes several texts for a row.
    If the model has `details`, return a tuple of this result and the details. Also report the
    tokens of the row, and a warning if a text was cut."""
    made = [text.completion_tokens for text in answer.texts if text.completion_tokens is not None]
    prompt = {"read": answer.prompt_tokens, "cached": answer.cached_tokens}
    count_tokens(row, **prompt, made=sum(made) if made else None)
    if any(text.finish_reason == "length" for text in answer.texts):
        warn(WarningName.ANSWER_CUT, row=row)
    texts = _single_or_list(model, [text.text for text in answer.texts])
    if model.details is None:
        return texts
    prompt_details = {name: getattr(answer, name) for name in ("prompt_tokens", "cached_tokens")}
    text_details = {
        name: _single_or_list(model, [{**vars(text), **text.more}[name] for text in answer.texts])
        for name in ("completion_tokens", "finish_reason", *answer.texts[0].more)
    }
    return texts, {**prompt_details, **text_details}


def usage_of(response: Any) -> tuple[int | None, int | None, int | None]:
    """Return the numbers of tokens that a response of the OpenAI API states: prompt, cached part of
    the prompt, and generated texts. Missing or implausible numbers are None."""
    usage = response.get("usage")
    paths = ("prompt_tokens",), ("prompt_tokens_details", "cached_tokens"), ("completion_tokens",)
    prompt, cached, made = (_token_count(usage, *path) for path in paths)
    return prompt, cached, made


def report_response(row: int, response: Any) -> None:
    """Report the tokens of a row in a response of the OpenAI API, and warn if a text was cut."""
    read, cached, made = usage_of(response)
    count_tokens(row, read=read, cached=cached, made=made)
    choices = response.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") == "length":
            warn(WarningName.ANSWER_CUT, row=row)
            return


def _token_count(usage: Any, *path: str) -> int | None:
    """Return the number of tokens at a path in `usage`; None if it is missing or not plausible."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return usage if type(usage) is int and 0 <= usage <= MAX_TOKENS else None


def _single_or_list(model: GeneratingModel, values: list[Any]) -> Any:
    return values if model.has_several_texts else values[0]
