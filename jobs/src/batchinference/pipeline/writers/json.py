"""JSON Lines files."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pyarrow as pa

from batchinference.pipeline.writers.base import plain


class JsonWriter:
    def __init__(self, compression: str) -> None:
        self._gzip = compression == "gzip"
        self.extension = ".jsonl.gz" if self._gzip else ".jsonl"

    def encode(self, table: pa.Table) -> memoryview:
        rows = plain(table).to_pylist()
        text = "".join(json.dumps(row, ensure_ascii=False, default=_other) + "\n" for row in rows)
        content = text.encode()
        return memoryview(gzip.compress(content, mtime=0) if self._gzip else content)


def _other(value: Any) -> Any:
    """What JSON has no form for: bytes as base64, dates and the like as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
