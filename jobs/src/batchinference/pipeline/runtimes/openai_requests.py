"""Reads rows that are complete requests of the OpenAI API, and creates responses to them."""

import json
import time
from collections.abc import Collection, Mapping
from typing import Any
from uuid import uuid4

from batchinference.openai_urls import path_of
from batchinference.pipeline.exact_json import load_unique
from batchinference.spec.models.generation import RequestModel

_WITHOUT_EFFECT = {
    *("model", "user", "metadata", "store", "service_tier", "prediction", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention"),
}
"""Fields of requests that are ignored, such as `model`: the step says which model answers."""
_RESPONSES = {
    "/chat/completions": ("chatcmpl", "chat.completion", "choices"),
    "/completions": ("cmpl", "text_completion", "choices"),
    "/embeddings": ("embd", "list", "data"),
}
"""For each path: the prefix of response ids, the response type, and the field for results."""


def body_of(model: RequestModel, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a row's request. Raises ValueError or TypeError if it is invalid."""
    text = row[model.request or ""]
    if not isinstance(text, str):
        raise TypeError(f"request: expected a JSON object as text, got {type(text).__name__}")
    body = load_unique(text)
    if not isinstance(body, dict):
        raise ValueError("request: expected a JSON object")
    if body.pop("stream", None):
        raise ValueError("request: the answers of a batch are not streamed. Remove 'stream'")
    return body


def check_fields(path: str, body: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ValueError if a body has a field that is neither known nor ignored."""
    if unknown := sorted(body.keys() - set(known) - _WITHOUT_EFFECT):
        raise ValueError(f"request: '{unknown[0]}' is not supported for {path}. Remove it")


def response_to(
    path: str, model: str, results: list[Any], read: int, made: int | None
) -> dict[str, Any]:
    """Return the response to a request for `path`. `read` is the number of input tokens. `made` is
    the number of output tokens; None for embeddings."""
    prefix, kind, field = _RESPONSES[path]
    usage = {"prompt_tokens": read, "total_tokens": read + (made or 0)}
    return {
        **{"id": f"{prefix}-{uuid4().hex}", "object": kind, "created": int(time.time())},
        **{"model": model, field: results},
        "usage": usage if made is None else {**usage, "completion_tokens": made},
    }


def path_of_row(model: RequestModel, row: Mapping[str, Any], default: str) -> str:
    """Return the path of a row's request below the base URL of the API, such as `/embeddings`. It
    is `default` if the row names no URL. Raises ValueError if no OpenAI API has the row's URL."""
    url = row[model.request_url] if model.request_url is not None else None
    path = default if url is None else path_of(url)
    if path is None:
        raise ValueError(f"requestUrl: expected the URL of an OpenAI API, got '{url}'")
    return path


def json_bytes(body: dict[str, Any]) -> bytes:
    """Return a request or response as JSON. Raises ValueError if it holds NaN or infinity."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError:
        raise ValueError(
            "the request or response holds NaN or infinity, which JSON has no number for. Replace "
            "it in a step before the model"
        ) from None
