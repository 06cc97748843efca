"""Converts the outputs of vLLM's engine to the results of rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchinference.pipeline.runtimes.answers import NO_ANSWER, Answer, Text
from batchinference.spec.models import VllmModel


class RowTimeout(RuntimeError):
    """A row has reached its time limit, after `read` input tokens and `made` output tokens."""

    def __init__(self, limit: str | None, output: Any) -> None:
        super().__init__(
            f"no answer within {limit}. Set sampling.max_tokens, or increase rowTimeout"
        )
        texts = output.outputs if isinstance(output.outputs, list) else []
        self.read, self.made = len(output.prompt_token_ids), sum(len(t.token_ids) for t in texts)


def answer_of(model: VllmModel, output: Any) -> Answer:
    """Return the answer for a row. Raises RuntimeError if the engine has aborted the row."""
    completions = sorted(output.outputs, key=lambda completion: completion.index)
    for completion in completions:
        if completion.finish_reason in NO_ANSWER:
            raise RuntimeError(f"vLLM ended the request with '{completion.finish_reason}'")
    texts = [_text_of(model, completion) for completion in completions]
    return Answer(texts, len(output.prompt_token_ids), output.num_cached_tokens)


def _text_of(model: VllmModel, completion: Any) -> Text:
    ids, more = completion.token_ids, {}
    if (count := model.sampling.get("logprobs")) is not None:
        tokens = zip(ids, completion.logprobs, strict=True)
        more["logprobs"] = [_logprobs_of(token, known, count) for token, known in tokens]
    return Text(str(completion.text), len(ids), completion.finish_reason, more)


def _logprobs_of(token: int, known: Mapping[int, Any], count: int) -> dict[str, Any]:
    """Return the log probability of a token, and those of the `count` most likely tokens at its
    position (-1: of all tokens). `known` maps tokens to their log probabilities."""
    ranked = sorted(known.values(), key=lambda candidate: candidate.rank)
    top = [candidate for candidate in ranked if count < 0 or candidate.rank <= count]
    return {**_logprob_of(known[token]), "top_logprobs": list(map(_logprob_of, top))}


def _logprob_of(logprob: Any) -> dict[str, Any]:
    return {"token": logprob.decoded_token, "logprob": np.float32(logprob.logprob)}


def vector_of(output: Any) -> np.ndarray:
    """Return the values of a row (float32): its embedding, its only score, or a score per label."""
    return np.asarray(output.outputs.data.float().cpu().numpy())


def labels_of(model: VllmModel, numbers: np.ndarray, names: Mapping[int, str]) -> Any:
    """Return the most likely label of a row with its score; with `topK`, a list of such labels."""
    best = np.argsort(-numbers, kind="stable")[: model.top_k or 1].tolist()
    labels = [{"label": names[number], "score": numbers[number]} for number in best]
    return labels if model.top_k else labels[0]
