"""Minimal BatchInference documents, as plain data."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


def document(name: str = "job", **spec: Any) -> Document:
    """Return a document that copies text to Parquet without steps. `spec` replaces its fields."""
    return {
        "apiVersion": "batchinference.dev/v1beta1",
        "kind": "BatchInference",
        "metadata": {"name": name},
        "spec": {
            "read": {"format": "text", "paths": ["s3://in/texts/"]},
            "write": {"format": "parquet", "path": "s3://out/result/"},
            **spec,
        },
    }


def schedule_document(name: str = "nightly", schedule: str = "0 * * * *", **spec: Any) -> Document:
    """Return a BatchInferenceSchedule. `spec` replaces fields of its spec."""
    template = {"spec": document()["spec"]}
    return {
        "apiVersion": "batchinference.dev/v1beta1",
        "kind": "BatchInferenceSchedule",
        "metadata": {"name": name},
        "spec": {"schedule": schedule, "template": template, **spec},
    }


def model_step(name: str = "embed", **fields: Any) -> Document:
    """Return a step that embeds column `text` with a transformers model."""
    model = {
        "runtime": "transformers",
        "task": "feature-extraction",
        "source": "org/model",
        "inputs": {"text": "text"},
        "output": "embedding",
    }
    return {"name": name, "model": model, **fields}


def python_step(name: str = "own", callable_: str = "module:Class", **fields: Any) -> Document:
    """Return a step with the user's code; a class by default."""
    return {"name": name, "python": {"callable": callable_}, **fields}
