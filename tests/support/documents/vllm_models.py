"""Models run by vLLM, as plain data."""

from __future__ import annotations

from typing import Any

from support.documents.minimal import Document
from support.documents.yaml_files import PARTS


def vllm(**fields: Any) -> Document:
    """Return a model that reads column `text`. `fields` override its own."""
    return {
        "runtime": "vllm",
        "source": "org/model",
        "inputs": {"question": "text"},
        "output": "answer",
        "sampling": {"max_tokens": 64} if fields.get("task", "generate") == "generate" else {},
        **fields,
    }


def vllm_step(name: str = "ask", gpu: int = 1, **fields: Any) -> Document:
    """Return a step that runs such a model with `fields`."""
    return {"name": name, "model": vllm(**fields), "resources": {"gpu": gpu}}


def full_model() -> Document:
    """Return a model with every field."""
    return vllm(**PARTS["vllm"]["full"])


def full_requests() -> Document:
    """Return a model whose rows are requests, with every field for them."""
    return vllm(**PARTS["vllm"]["requests"])


def full_vllm_step() -> Document:
    return {**vllm_step(), "model": full_model()}
