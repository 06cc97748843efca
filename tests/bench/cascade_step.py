"""The two models of cascade.py, which are trained on handwritten digits when they are loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

TRAINED = 600
"""The number of digits for training. The others are the input of the job."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (rows x 64) and the digits."""
    result = load_digits()
    return result.data, result.target


class Cheap:
    """A linear model: the digit, and how sure it is."""

    def __init__(self) -> None:
        pixels, labels = digits()
        self._model = LogisticRegression(max_iter=300).fit(pixels[:TRAINED], labels[:TRAINED])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        chances = self._model.predict_proba(np.stack(batch["pixels"]))
        return {**batch, "cheap": chances.argmax(axis=1), "score": chances.max(axis=1)}


class Expensive:
    """The vote of 100 support vector machines."""

    def __init__(self) -> None:
        pixels, labels = digits()
        votes = BaggingClassifier(SVC(gamma=0.001), n_estimators=100, random_state=0)
        self._model = votes.fit(pixels[:TRAINED], labels[:TRAINED])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "expensive": self._model.predict(np.stack(batch["pixels"]))}
