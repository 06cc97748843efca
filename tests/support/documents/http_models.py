"""Models behind HTTP endpoints, as plain data."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from batchinference.spec.models import HttpModel
from support.documents.minimal import Document
from support.documents.yaml_files import PARTS

if TYPE_CHECKING:
    import numpy as np

URL = "https://llm.example/v1"


def chat(**fields: Any) -> Document:
    """Return a chat model that reads column `text`. `fields` override its own."""
    return {
        "runtime": "http",
        "api": "chat",
        "url": URL,
        "name": "org/model",
        "inputs": {"question": "text"},
        "output": "answer",
        **fields,
    }


def json_endpoint(**fields: Any) -> Document:
    """Return a model behind an endpoint with a custom request body."""
    return {
        "runtime": "http",
        "api": "json",
        "url": "https://score.example/predict",
        "inputs": {"value": "text"},
        "output": "score",
        "body": {"instances": ["{value}"]},
        **fields,
    }


def full_models() -> dict[str, Document]:
    """Return valid models by name. Together they use every field."""
    items = PARTS["endpoints"].items()
    return {name: (json_endpoint if name == "json" else chat)(**more) for name, more in items}


async def ask(model: Document, **columns: list[Any]) -> list[Any]:
    """Run the model on a batch in a thread, as an actor does, and return its results."""
    return await asyncio.to_thread(ask_and_wait, model, **columns)


def ask_and_wait(model: Document, **columns: list[Any]) -> list[Any]:
    """Run the model on a batch. Raises the error of a row that ends the job."""
    from batchinference.pipeline.rows_in_flight import Unanswered
    from batchinference.pipeline.runtimes.device import Device
    from batchinference.pipeline.runtimes.kinds import load_runtime

    runtime = load_runtime(HttpModel.model_validate(model), Device())
    results = list(runtime({name: objects(values) for name, values in columns.items()}))
    for result in results:
        if isinstance(result, Unanswered) and result.cause is not None:
            raise result.cause
    return results


def objects(values: list[Any]) -> np.ndarray:
    """Return a column of Python objects."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
