"""Writes the result files of the OpenAI batch API, and reads them back."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchinference.json_text import to_json
from batchinference.pipeline.errors import UnwritableValue
from batchinference.pipeline.exact_json import refuse_constant
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.output.writers import RewritingWriter, unwritable_items
from batchinference.pipeline.output.writers.json import TEXT
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import load_json, load_limited_json

_LINE_ENDS = re.compile(r"[\r\n]+")
_ESCAPES = {end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""The escapes of the Unicode line ends at which OpenAI's client and `str.splitlines` divide."""


@dataclass(frozen=True)
class OpenaiBatchWriter(RewritingWriter):
    """`files` expects the number of the input row in the first column. `read` returns lines."""

    custom_id: str
    response: str

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        yield ".jsonl", "".join(self._line(row) for row in table.to_pylist()).encode()

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        return unwritable_items(self._line, table.to_pylist())

    def _line(self, row: Row) -> str:
        line, custom_id = request_id(next(iter(row.values()))), row[self.custom_id]
        if not isinstance(custom_id, str):
            raise UnwritableValue(f"column '{self.custom_id}': expected text, got {custom_id!r}")
        about = f'"status_code": 200, "request_id": "{line}"'
        body = self._body(row[self.response])
        return as_line(
            f'{{"id": "{line}", "custom_id": {to_json(custom_id)}, '
            f'"response": {{{about}, "body": {body}}}, "error": null}}'
        )

    def _body(self, response: Any) -> str:
        """Return a response as one line. Raises UnwritableValue if it is not a JSON object."""
        problem = f"column '{self.response}': expected a JSON object as text"
        if not isinstance(response, str):
            raise UnwritableValue(f"{problem}, got {type(response).__name__}")
        try:
            parsed = load_json(response, parse_constant=refuse_constant)
        except ValueError as error:
            raise UnwritableValue(f"{problem}: {error}") from None
        if not isinstance(parsed, dict):
            raise UnwritableValue(f"{problem}, got the JSON of a {type(parsed).__name__}")
        return _LINE_ENDS.sub(" ", response)  # JSON strings contain no unescaped line ends

    def rows(self, part: Location) -> Iterator[Row]:
        yield from map(load_limited_json, io.BytesIO(part.read()))

    def converted(self, table: pa.Table) -> pa.Table:
        """Return a table without rows, but with the column of `read`."""
        return _lines([])

    def read(self, content: bytes) -> pa.Table:
        return _lines(content.decode().split("\n")[:-1])

    def write(self, tables: Iterable[pa.Table]) -> bytes:
        lines = (line for table in tables for line in table.column(0).to_pylist())
        return "".join(f"{line}\n" for line in lines).encode()


def _lines(lines: list[str]) -> pa.Table:
    return pa.table({"line": pa.array(lines, TEXT)})


def request_id(number: int) -> str:
    """Return the id of a request, made of the number of its input row."""
    return f"batch_req_{number:020d}"


def as_line(document: str) -> str:
    """Return a JSON document as a line that no reader divides. The document has no CR or LF."""
    for end, escape in _ESCAPES.items():  # these characters occur only within JSON strings
        document = document.replace(end, escape)
    return f"{document}\n"
