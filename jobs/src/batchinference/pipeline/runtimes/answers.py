"""The answers of language models: their texts, their tokens, and why each text ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.spec.models.generation import GeneratingModel
from batchinference.spec.warnings import WarningName

MAX_TOKENS = 2**31
"""A row with more tokens would be an error of the endpoint."""


@dataclass(frozen=True)
class Text:
    """A generated text. None stands for what is unknown; `more` are further fields of `details`."""

    text: str
    completion_tokens: int | None
    finish_reason: str | None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The texts for a row, and the tokens of its prompt; None stands for what is unknown."""

    texts: Sequence[Text]
    prompt_tokens: int | None
    cached_tokens: int | None = None


def result_of(model: GeneratingModel, row: int, answer: Answer) -> Any:
    """Return the result of a row of the batch: its text, or the list of its texts; with `details`,
    a tuple of this and the details. Report its tokens, and whether a text was cut."""
    made = [one.completion_tokens for one in answer.texts if one.completion_tokens is not None]
    prompt = {"read": answer.prompt_tokens, "cached": answer.cached_tokens}
    count_tokens(row, **prompt, made=sum(made) if made else None)
    if any(one.finish_reason == "length" for one in answer.texts):
        warn(WarningName.ANSWER_CUT, row=row)
    texts = _single_or_list(model, [one.text for one in answer.texts])
    if model.details is None:
        return texts
    names = ("completion_tokens", "finish_reason", *answer.texts[0].more)
    about = {
        name: _single_or_list(model, [{**vars(one), **one.more}[name] for one in answer.texts])
        for name in names
    }
    names = ("prompt_tokens", "cached_tokens")
    return texts, {**{name: getattr(answer, name) for name in names}, **about}


def usage_of(response: Any) -> tuple[int | None, int | None, int | None]:
    """Return the tokens of a response of the OpenAI API: of the prompt, those of them that were
    cached, and of the texts. What it does not say is None."""
    usage = response.get("usage")
    paths = ("prompt_tokens",), ("prompt_tokens_details", "cached_tokens"), ("completion_tokens",)
    prompt, cached, made = (_tokens(usage, *path) for path in paths)
    return prompt, cached, made


def report_response(row: int, response: Any) -> None:
    """Report the tokens of a response of the OpenAI API for a row of the batch, and whether one of
    its texts was cut."""
    read, cached, made = usage_of(response)
    count_tokens(row, read=read, cached=cached, made=made)
    choices = response.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") == "length":
            warn(WarningName.ANSWER_CUT, row=row)
            return


def _tokens(usage: Any, *path: str) -> int | None:
    """Return a number of tokens that an endpoint says; None if it does not, or if it cannot be."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return usage if type(usage) is int and 0 <= usage <= MAX_TOKENS else None


def _single_or_list(model: GeneratingModel, values: list[Any]) -> Any:
    return values if model.has_several_texts else values[0]
