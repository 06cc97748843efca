"""The code of a step of way_of_the_data.py."""

from __future__ import annotations

from typing import Any


class Length:
    """Adds the lengths of texts. Raises ValueError for the text `bad`."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if "bad" in batch["text"].tolist():
            raise ValueError("a bad text")
        return {**batch, "length": [len(text) for text in batch["text"]]}
