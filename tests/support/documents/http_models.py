"""Models behind HTTP endpoints, as plain data."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from batchinference.spec.models import HttpModel
from support.documents.minimal import Document

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
    asking = {
        "inputs": {"question": "text", "photo": "image", "style": "class"},
        "prompt": "{question}",
        "system": "You answer {style}.",
        "messages": [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4"},
        ],
        "images": ["photo"],
        "sampling": {"temperature": 0, "max_tokens": 64},
        "details": "about",
    }
    fields = [
        {"name": "label", "type": "string", "enum": ["a", "b"], "description": "Its kind."},
        {"name": "score", "type": "float32", "minimum": 0, "maximum": 1, "nullable": True},
    ]
    sending = {
        "concurrency": 8,
        "requestsPerSecond": 2.5,
        "timeout": "30s",
        "retries": 3,
        "apiKeyEnv": "OPENAI_API_KEY",
        "headersFrom": {"OpenAI-Organization": "OPENAI_ORGANIZATION"},
    }
    return {
        "chat": chat(**asking, **sending, schema={"fields": fields}, repair=2),
        "completions": chat(
            api="completions", prompt="Q: {question}", schema={"jsonSchema": {"type": "integer"}}
        ),
        "embeddings": chat(
            api="embeddings", sampling={"dimensions": 64}, maxInputTokens=8191, tooLong="fail"
        ),
        "json": json_endpoint(resultPath="predictions.0", resultType="number"),
    }


async def ask(model: Document, **columns: list[Any]) -> list[Any]:
    """Run the model on a batch in a thread, as an actor does, and return its results."""
    return await asyncio.to_thread(ask_and_wait, model, **columns)


def ask_and_wait(model: Document, **columns: list[Any]) -> list[Any]:
    from batchinference.pipeline.runtimes import load_runtime
    from batchinference.pipeline.runtimes.device import Device

    runtime = load_runtime(HttpModel.model_validate(model), Device())
    return list(runtime({name: objects(values) for name, values in columns.items()}))


def objects(values: list[Any]) -> np.ndarray:
    """Return a column of Python objects."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
