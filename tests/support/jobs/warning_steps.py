"""Steps of users that report warnings about rows, as decoders and models do."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.spec.warnings import WarningName


def cut(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Cut each number to at most 9, and warn about the difference. Fail for negative numbers."""
    for row, number in enumerate(batch["n"].tolist()):
        if number > 9:
            warn(WarningName.TEXT_CUT, row=row, amount=number - 9)
    if (batch["n"] < 0).any():
        raise ValueError("negative")
    return {**batch, "n": np.minimum(batch["n"], 9)}


def fail_odd(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Raise an error for each row whose `id` is odd."""
    if (batch["id"] % 2 == 1).any():
        raise ValueError("odd")
    return batch


def use_tokens(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Count as many input tokens as the number of each row, and one output token. Return an error
    for negative numbers, after a token was used."""
    for row, number in enumerate(batch["n"].tolist()):
        count_tokens(row, read=abs(number), made=1)
    if len(batch["n"]) > 1 and (batch["n"] < 0).any():
        raise ValueError("negative")
    return batch


class Cut:
    """The step `cut` as a class, which runs in an actor pool."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return cut(batch)
