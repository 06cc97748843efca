"""Models behind HTTP endpoints, as plain data."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from batchinference.pipeline.devices import Device
from batchinference.pipeline.runtimes import load_runtime
from batchinference.spec.models import HttpModel
from support.documents import Document

URL = "https://llm.example/v1"


def chat(**fields: Any) -> Document:
    """A chat model that is asked what column `text` says; `fields` replace its own."""
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
    """An endpoint with a form of its own."""
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
    """Valid models by name: there is no field that none of them uses."""
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
    }
    sending = {
        "concurrency": 8,
        "requestsPerSecond": 2.5,
        "timeoutSeconds": 30,
        "retries": 3,
        "apiKeyEnv": "OPENAI_API_KEY",
        "headersFrom": {"OpenAI-Organization": "OPENAI_ORGANIZATION"},
    }
    return {
        "chat": chat(**asking, **sending),
        "completions": chat(api="completions", prompt="Q: {question}"),
        "embeddings": chat(api="embeddings", sampling={"dimensions": 64}),
        "json": json_endpoint(resultPath="predictions.0", resultType="number"),
    }


async def ask(model: Document, **columns: list[Any]) -> list[Any]:
    """What the runtime makes of a batch of rows, asked from a thread as an actor does it."""
    return await asyncio.to_thread(ask_and_wait, model, **columns)


def ask_and_wait(model: Document, **columns: list[Any]) -> list[Any]:
    runtime = load_runtime(HttpModel.model_validate(model), Device())
    return list(runtime({name: objects(values) for name, values in columns.items()}))


def objects(values: list[Any]) -> np.ndarray:
    """A column as a batch has it where rows have no one shape."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
