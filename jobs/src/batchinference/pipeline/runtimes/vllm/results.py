"""The results of rows: what a job keeps of the outputs of vLLM's engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchinference.spec.models import VllmModel

_NO_ANSWER = ("abort", "error")
"""Reasons for which vLLM ends a request without its whole text."""


def texts_of(model: VllmModel, output: Any) -> Any:
    """Return the text of a row, or its texts; with `details` a tuple of this and the details.
    Raises RuntimeError if the engine has ended the request."""
    completions = sorted(output.outputs, key=lambda completion: completion.index)
    for completion in completions:
        if completion.finish_reason in _NO_ANSWER:
            raise RuntimeError(f"vLLM ended the request with '{completion.finish_reason}'")
    texts = _single_or_list(model, [str(completion.text) for completion in completions])
    if model.details is None:
        return texts
    about = [_details_of(model, completion) for completion in completions]
    columns = {name: _single_or_list(model, [one[name] for one in about]) for name in about[0]}
    return texts, {"prompt_tokens": len(output.prompt_token_ids), **columns}


def _single_or_list(model: VllmModel, values: list[Any]) -> Any:
    return values if model.has_several_texts else values[0]


def _details_of(model: VllmModel, completion: Any) -> dict[str, Any]:
    details = {
        "completion_tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
    }
    if (most := model.sampling.get("logprobs")) is not None:
        tokens = zip(completion.token_ids, completion.logprobs, strict=True)
        details["logprobs"] = [_logprobs_of(token, known, most) for token, known in tokens]
    return details


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
