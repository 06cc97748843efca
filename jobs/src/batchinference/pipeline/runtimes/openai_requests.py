"""Rows that are complete requests of the OpenAI API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from batchinference.openai_urls import path_of
from batchinference.pipeline.json_texts import load_unique
from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.spec.models.requests import RequestModel
from batchinference.spec.warnings import WarningName

MAX_TOKENS = 2**31
"""A row with more tokens would be an error of the endpoint."""


def body_of(model: RequestModel, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a row's request. Raises ValueError or TypeError if it is none."""
    text = row[model.request or ""]
    if not isinstance(text, str):
        raise TypeError(f"request: expected a JSON object as text, got {type(text).__name__}")
    body = load_unique(text)
    if not isinstance(body, dict):
        raise ValueError("request: expected a JSON object")
    if body.pop("stream", None):
        raise ValueError("request: the answers of a batch are not streamed. Remove 'stream'")
    return body


def path_of_row(model: RequestModel, row: Mapping[str, Any], default: str) -> str:
    """Return the path of a row's request below the base of the API. Raises ValueError if the row
    names a URL that is not served."""
    url = row[model.request_url] if model.request_url is not None else None
    path = default if url is None else path_of(url)
    if path is None:
        raise ValueError(f"requestUrl: expected the URL of an OpenAI API, got '{url}'")
    return path


def dumped(body: dict[str, Any]) -> bytes:
    """Return the JSON of a request. Raises ValueError if it holds NaN or infinity."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError:
        raise ValueError(
            "the request holds NaN or infinity, which JSON has no number for. Replace it in a step "
            "before the model"
        ) from None


def report_response(row: int, response: Mapping[str, Any]) -> None:
    """Report the tokens in the response to a row, and whether a text was cut."""
    usage, choices = response.get("usage"), response.get("choices")
    count_tokens(
        row,
        read=tokens_in(usage, "prompt_tokens"),
        cached=tokens_in(usage, "prompt_tokens_details", "cached_tokens"),
        made=tokens_in(usage, "completion_tokens"),
    )
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") == "length":
            warn(WarningName.ANSWER_CUT, row=row)
            return


def tokens_in(usage: Any, *path: str) -> int | None:
    """Return a number of tokens that an endpoint says; None if it does not, or if it cannot be."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, dict) else None
    return usage if type(usage) is int and 0 <= usage <= MAX_TOKENS else None
