"""JSON Lines files.

JSON has no NaN and no infinity: they become null.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any

import pyarrow as pa

from batchinference.pipeline.writers.base import plain


class JsonWriter:
    def __init__(self, compression: str) -> None:
        self._gzip = compression == "gzip"
        self.extension = ".jsonl.gz" if self._gzip else ".jsonl"

    def encode(self, table: pa.Table) -> memoryview:
        rows = plain(table).to_pylist()
        content = "".join(_line(row) + "\n" for row in rows).encode()
        return memoryview(gzip.compress(content, mtime=0) if self._gzip else content)


def _line(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_other)
    except ValueError:
        return json.dumps(_finite(row), ensure_ascii=False, default=_other)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [_finite(element) for element in value]
        case dict():
            return {key: _finite(element) for key, element in value.items()}
    return value


def _other(value: Any) -> Any:
    """What JSON has no form for: bytes as base64, dates and the like as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
