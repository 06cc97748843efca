"""Models of each runtime, as in a document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.documents.yaml_files import read_yaml

FULL_MODELS: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name("valid_parts.yaml"))[
    "models"
]
"""Valid models that together use every field of these runtimes, without `output`."""


def full_model(name: str) -> dict[str, Any]:
    return {"runtime": name, **FULL_MODELS[name], "output": "y"}
