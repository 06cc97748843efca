"""Writes JSON Lines files.

NaN and infinity become null, because JSON cannot represent them.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from batchinference.pipeline.arrow import tensors_to_lists, with_known_zones


class JsonWriter:
    def __init__(self, compression: str) -> None:
        self._gzip = compression == "gzip"

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        rows = with_known_zones(tensors_to_lists(table)).to_pylist()
        content = "".join(to_json(row) + "\n" for row in rows).encode()
        if self._gzip:
            yield ".jsonl.gz", gzip.compress(content, mtime=0)
        else:
            yield ".jsonl", content


def to_json(value: Any) -> str:
    """Return a plain value as one line of JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_other)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=_other)


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
    """Return a value that JSON cannot represent as text: bytes as base64, others such as dates as
    their `str`."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
