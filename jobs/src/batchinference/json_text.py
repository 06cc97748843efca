"""Writes plain Python values as JSON."""

from __future__ import annotations

import base64
import json
import math
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a plain value as JSON, on one line unless `indent` is set. NaN and infinity become
    null, because JSON cannot represent them."""
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, default=_as_text, indent=indent
        )
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=_as_text, indent=indent)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_finite(element) for element in value]
        case dict():
            return {key: _finite(element) for key, element in value.items()}
    return value


def _as_text(value: Any) -> Any:
    """Return a value as text because JSON lacks its type: bytes as base64, others by `str`."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
