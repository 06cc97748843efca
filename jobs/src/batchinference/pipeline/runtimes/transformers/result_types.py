"""Converts results to Arrow: the column types, and labels with their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch

LABELED = pa.struct([("label", pa.string()), ("score", pa.float32())])


def labels(logits: torch.Tensor, config: Any, top_k: int | None) -> pa.Array:
    """Return the most likely label of each row with its score, or a list of the `top_k` best.

    `logits` are rows x classes.
    """
    most = min(top_k or 1, logits.shape[1])
    scores, indices = _scores(logits, config).topk(most, dim=-1)
    names = pa.array([config.id2label[index] for index in indices.flatten().tolist()], pa.string())
    flat = pa.StructArray.from_arrays(
        [names, pa.array(scores.flatten().numpy())], fields=list(LABELED)
    )
    if top_k is None:
        return flat
    offsets = np.arange(len(logits) + 1, dtype=np.int32) * most
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def _scores(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """Return the scores as the library's pipelines do: probabilities, or for a regression the raw
    values."""
    if config.problem_type == "regression":
        return logits
    if config.problem_type == "multi_label_classification" or logits.shape[1] == 1:
        return logits.sigmoid()
    return logits.softmax(dim=-1)
