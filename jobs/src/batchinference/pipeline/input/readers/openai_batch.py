"""Reads request files of the OpenAI and Azure batch APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchinference.json_text import to_json
from batchinference.openai_urls import PATHS, path_of
from batchinference.pipeline.input.json_rows import JsonRows
from batchinference.pipeline.input.readers import BadRow, Chunk
from batchinference.pipeline.input.readers.json import ARRAY, JsonReader
from batchinference.pipeline.storage.json import load_json
from batchinference.pipeline.storage.location import Location
from batchinference.spec.column_types import ColumnType

if TYPE_CHECKING:
    from batchinference.spec.read import OpenaiBatchOptions

_COLUMNS = ("custom_id", "method", "url", "body")
_TYPES: dict[str, ColumnType] = dict.fromkeys(_COLUMNS, "json")
"""The columns as they are read: the type `string` would take numbers too."""
_SCHEMA = pa.schema([(name, pa.string()) for name in _COLUMNS])
_BEGINNING = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*("(?:[^"\\]|\\.)*")')
"""The beginning of a line that may be damaged behind its id."""


class BadLine(ValueError):
    """A line that is no request. `values` has its id as JSON, if it is known."""

    def __init__(self, problem: str, custom_id: Any) -> None:
        super().__init__(problem)
        known = isinstance(custom_id, str)
        self.values = to_json({"custom_id": _valid(custom_id)}) if known else None


def _valid(text: str) -> str:
    """Return the text with replacements for halves of surrogate pairs."""
    return text.encode(errors="replace").decode()


class _RequestRows(JsonRows):
    """Parses the lines, and adds their ids to the errors of lines that cannot be parsed."""

    def explain(self, line: bytes, error: Exception) -> Exception:
        return BadLine(str(super().explain(line, error)), _custom_id_of(line))


class OpenaiBatchReader(JsonReader):
    """Each line that is no request is a failed row."""

    def __init__(self, options: OpenaiBatchOptions) -> None:
        self._lines, self._most = True, options.row_bytes
        self._rows = _RequestRows(_TYPES, {})

    def prepare(self, samples: list[Location]) -> None:
        """Do nothing: the types of the columns are known."""

    def read(self, file: Location) -> Iterator[Chunk]:
        try:
            for chunk in super().read(file):
                if isinstance(chunk, BadRow):
                    yield replace(chunk, error=_own(chunk.error))
                else:
                    yield from _requests(chunk.select(_COLUMNS).to_pylist())
        except ValueError as error:
            raise _own(error) from None

    def columns(self) -> list[str]:
        return list(_COLUMNS)

    def types(self) -> dict[str, pa.DataType]:
        return dict(zip(_SCHEMA.names, _SCHEMA.types, strict=True))


def _own(error: Exception) -> Exception:
    """Return the error of a line or a file without the fix for other JSON files."""
    message = str(error)
    if ARRAY not in message:
        return error
    return ValueError(message.replace(ARRAY, "write each request in a line of its own"))


def _requests(lines: list[dict[str, Any]]) -> Iterator[Chunk]:
    """Yield the requests among lines, and an error for each other line, in order."""
    requests: list[dict[str, Any]] = []
    for line in lines:
        parsed = {name: json.loads(line[name] or "null") for name in _COLUMNS[:3]}
        if problem := _problem(**parsed, body=line["body"] or ""):
            if requests:
                yield pa.Table.from_pylist(requests, _SCHEMA)
            requests = []
            yield BadRow(BadLine(problem, parsed["custom_id"]))
        else:
            requests.append({**parsed, "body": line["body"]})
    if requests:
        yield pa.Table.from_pylist(requests, _SCHEMA)


def _problem(custom_id: Any, method: Any, url: Any, body: str) -> str:
    """Return why a line is no request; empty if it is one."""
    if not isinstance(custom_id, str):
        return f"custom_id: expected a text, got {to_json(custom_id)}"
    if custom_id != _valid(custom_id):
        return "custom_id: expected a text, got half of a surrogate pair"
    if method != "POST":
        return f"method: expected POST, got {to_json(method)}"
    if path_of(url) is None:
        known = ", ".join(f"/v1{path}" for path in PATHS)
        return f"url: expected one of {known}, got {to_json(url)}"
    return "" if body.startswith("{") else "body: expected a JSON object"


def _custom_id_of(line: bytes) -> Any:
    """Return the id of a line; None if it has none, or is damaged before its end."""
    try:
        row = load_json(line)
        return row.get("custom_id") if isinstance(row, dict) else None
    except ValueError:
        beginning = _BEGINNING.match(line)
    try:
        return json.loads(beginning[1]) if beginning else None
    except ValueError:
        return None
