"""The results of rows: what a job keeps of the outputs of vLLM's engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchinference.pipeline.runtimes.answers import Answer, Text
from batchinference.spec.models import VllmModel

NO_ANSWER = ("abort", "error")
"""Reasons for which vLLM ends a request without its whole text."""


class TimedOut(RuntimeError):
    """A row was ended because of its time limit, with an output so far."""

    def __init__(self, limit: str | None, output: Any) -> None:
        super().__init__(
            f"no answer within {limit} (rowTimeout). Set sampling.max_tokens, or increase it"
        )
        texts = output.outputs if isinstance(output.outputs, list) else []
        self.read, self.made = len(output.prompt_token_ids), sum(len(t.token_ids) for t in texts)


def answer_of(model: VllmModel, output: Any) -> Answer:
    """Return the answer for a row. Raises RuntimeError if the engine has ended the request."""
    completions = sorted(output.outputs, key=lambda completion: completion.index)
    for completion in completions:
        if completion.finish_reason in NO_ANSWER:
            raise RuntimeError(f"vLLM ended the request with '{completion.finish_reason}'")
    texts = [_text_of(model, completion) for completion in completions]
    return Answer(texts, len(output.prompt_token_ids), output.num_cached_tokens)


def _text_of(model: VllmModel, completion: Any) -> Text:
    ids, more = completion.token_ids, {}
    if (most := model.sampling.get("logprobs")) is not None:
        tokens = zip(ids, completion.logprobs, strict=True)
        more["logprobs"] = [_logprobs_of(token, known, most) for token, known in tokens]
    return Text(str(completion.text), len(ids), completion.finish_reason, more)


def _logprobs_of(token: int, known: Mapping[int, Any], most: int) -> dict[str, Any]:
    """Return the log probability of a token, and those of the `most` likely tokens in its place;
    of all if it is -1. vLLM adds the token to them, even if it is less likely."""
    ranked = sorted(known.values(), key=lambda one: one.rank)
    top = [one for one in ranked if most < 0 or one.rank <= most]
    return {**_logprob_of(known[token]), "top_logprobs": [_logprob_of(one) for one in top]}


def _logprob_of(found: Any) -> dict[str, Any]:
    return {"token": found.decoded_token, "logprob": np.float32(found.logprob)}


def vector_of(output: Any) -> np.ndarray:
    """Return the numbers of a row (float32): its embedding, or the result for each label."""
    return np.asarray(output.outputs.data.float().cpu().numpy())


def labels_of(model: VllmModel, numbers: np.ndarray, names: Mapping[int, str]) -> Any:
    """Return the most likely label of a row with its score, or a list with `topK`."""
    best = np.argsort(-numbers, kind="stable")[: model.top_k or 1].tolist()
    labels = [{"label": names[number], "score": numbers[number]} for number in best]
    return labels if model.top_k else labels[0]
