"""Reads request files of the OpenAI and Azure batch APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchinference.json_text import to_json
from batchinference.openai_urls import PATHS, path_of
from batchinference.pipeline.exact_json import load_unique, with_texts
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, grouped, or_bad
from batchinference.pipeline.input.readers.text_lines import estimated_rows, line_chunks
from batchinference.pipeline.input.signatures import packed_as
from batchinference.pipeline.storage.location import Location
from batchinference.spec.column_types import ColumnType

if TYPE_CHECKING:
    from batchinference.spec.read.base import RowOptions

_SCHEMA = pa.schema([(name, pa.string()) for name in ("custom_id", "method", "url", "body")])
_AS_TEXTS: dict[str, ColumnType] = dict.fromkeys(_SCHEMA.names, "json")
_BEGINNING = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*"([^"\\]*)"')
"""Matches the beginning of a line up to the custom id. The rest of the line may be damaged."""


class BadLine(ValueError):
    """A line that is not a valid request. `values` is JSON with the custom id; None if unknown."""

    def __init__(self, problem: str, custom_id: Any) -> None:
        super().__init__(problem)
        known = isinstance(custom_id, str)
        self.values = to_json({"custom_id": _without_lone_surrogates(custom_id)}) if known else None


class OpenaiBatchReader(Reader):
    """Reads a request per line. A line that is not a valid request is a failed row."""

    other_format = staticmethod(packed_as)

    def __init__(self, options: RowOptions) -> None:
        self._row_bytes = options.row_bytes

    def read(self, file: Location) -> Iterator[Chunk]:
        for chunk in line_chunks(file, self._row_bytes):
            yield from [chunk] if isinstance(chunk, BadRow) else _rows_of(chunk)

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size)

    def columns(self) -> list[str]:
        return list(_SCHEMA.names)

    def types(self) -> dict[str, pa.DataType]:
        return dict(zip(_SCHEMA.names, _SCHEMA.types, strict=True))


def _rows_of(chunk: bytes) -> Iterator[Chunk]:
    """Yield the requests in a chunk of lines, and a BadRow for each invalid line, in order."""
    lines = filter(bytes.strip, chunk.split(b"\n"))
    for group in grouped(or_bad(partial(_request, line)) for line in lines):
        is_bad = isinstance(group, BadRow)
        yield group if is_bad else pa.Table.from_pylist(group, _SCHEMA)


def _request(line: bytes) -> dict[str, str]:
    """Return the columns of a line. Raises BadLine if it is not a valid request."""
    try:
        texts = load_unique(with_texts(line.decode(), _AS_TEXTS))
    except ValueError as error:
        beginning = _BEGINNING.match(line)
        custom_id = beginning[1].decode(errors="replace") if beginning else None
        raise BadLine(f"the line is not JSON ({error})", custom_id) from None
    if not isinstance(texts, dict):
        raise BadLine("the line is not a JSON object", None)
    row = {name: json.loads(texts.get(name) or "null") for name in _SCHEMA.names[:3]}
    if problem := _problem(**row, body=texts.get("body") or ""):
        raise BadLine(problem, row["custom_id"])
    return {**row, "body": texts["body"]}


def _problem(custom_id: Any, method: Any, url: Any, body: str) -> str:
    """Return why a line is not a valid request; empty if it is one."""
    if not isinstance(custom_id, str) or custom_id != _without_lone_surrogates(custom_id):
        return f"custom_id: expected a text, got {json.dumps(custom_id)}"
    if method != "POST":
        return f"method: expected POST, got {json.dumps(method)}"
    if path_of(url) is None:
        known = ", ".join(f"/v1{path}" for path in PATHS)
        return f"url: expected one of {known}, got {json.dumps(url)}"
    return "" if body.startswith("{") else "body: expected a JSON object"


def _without_lone_surrogates(text: str) -> str:
    """Return the text with `?` in place of halves of surrogate pairs."""
    return text.encode(errors="replace").decode()
