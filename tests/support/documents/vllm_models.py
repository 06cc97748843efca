"""Models run by vLLM, as plain data."""

from __future__ import annotations

from typing import Any

from support.documents.minimal import Document


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
    return vllm(
        task="generate",
        source="s3://models/llama",
        storage={"endpoint": "http://minio.models:9000"},
        inputs={"question": "text", "photo": "image", "style": "class"},
        prompt="{question}",
        system="You answer shortly.",
        messages=[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
        images=["photo"],
        allow=["https://intranet.example/photos/"],
        details="about",
        chat=True,
        chatTemplate="{{ messages }}",
        chatTemplateArgs={"enable_thinking": False},
        engine={"max_model_len": 4096, "gpu_memory_utilization": 0.9},
        parallelism={"tensor": 1, "pipeline": 1},
        loraPath="s3://models/adapters/",
        loraAdapters=["poem", "ode"],
        adapter="style",
        rowTimeout="10m",
    )


def full_requests() -> Document:
    """Return a model whose rows are requests, with every field for them."""
    return vllm(
        inputs={"body": "text", "url": "url"},
        request="body",
        requestUrl="url",
        sampling={},
        toolCallParser="hermes",
    )


def full_vllm_step() -> Document:
    return {**vllm_step(), "model": full_model()}
