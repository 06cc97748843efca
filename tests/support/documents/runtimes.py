"""Models of each runtime, as in a document."""

from __future__ import annotations

from typing import Any

from support.documents.yaml_files import PARTS

FULL_MODELS: dict[str, dict[str, Any]] = PARTS["models"]
"""Valid models that together use every field of these runtimes, without `output`."""


def full_model(name: str) -> dict[str, Any]:
    return {"runtime": name, **FULL_MODELS[name], "output": "y"}
