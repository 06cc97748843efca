"""The answers of language models: their texts, their tokens, and why each text ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.spec.models.generation import GeneratingModel
from batchinference.spec.warnings import WarningName


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


def _single_or_list(model: GeneratingModel, values: list[Any]) -> Any:
    return values if model.has_several_texts else values[0]
