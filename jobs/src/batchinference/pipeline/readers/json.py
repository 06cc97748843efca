"""JSON files, by pyarrow: one object a line, or one array of objects a file.

Column types are learned from the beginning of a few files and then hold for all of them, so that
every output file has the same schema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as paj

from batchinference.pipeline.readers.base import BadRow, Chunk
from batchinference.pipeline.readers.lines import estimated_rows, line_chunks, sample_of
from batchinference.pipeline.readers.schemas import agreed_schema
from batchinference.pipeline.storage import Address
from batchinference.spec.read import JsonOptions

_BLOCK = 64 << 20
"""Above any chunk, because a record must not straddle two of pyarrow's blocks."""


class JsonReader:
    extensions = ("json", "jsonl", "ndjson")
    row_per_file = False
    rows_exact = False

    def __init__(self, options: JsonOptions) -> None:
        self._lines = options.lines
        self._schema = pa.schema([])

    def prepare(self, samples: list[Address]) -> None:
        parts = [sample_of(sample) if self._lines else _as_lines(sample) for sample in samples]
        self._schema = agreed_schema([part for part in parts if part.strip()], _parse)

    def read(self, file: Address) -> Iterator[Chunk]:
        try:
            chunks = line_chunks(file) if self._lines else iter([_as_lines(file)])
            for chunk in chunks:
                yield from self._rows(chunk)
        except ValueError as error:  # an array that is no JSON
            yield BadRow(error)

    def _rows(self, chunk: bytes) -> Iterator[Chunk]:
        if not chunk.strip():
            return
        try:
            yield _parse(chunk, self._schema)
        except pa.ArrowInvalid:
            yield from self._one_by_one(chunk)

    def _one_by_one(self, chunk: bytes) -> Iterator[Chunk]:
        """The lines of a chunk in which at least one cannot be parsed."""
        good: list[pa.Table] = []
        for line in chunk.splitlines():
            if not line.strip():
                continue
            try:
                good.append(_parse(line, self._schema))
            except pa.ArrowInvalid as error:
                yield from _joined(good)
                yield BadRow(error)
                good = []
        yield from _joined(good)

    def rows_in(self, file: Address, size: int) -> int | None:
        return estimated_rows(sample_of(file), size) if self._lines else None

    def columns(self) -> list[str] | None:
        return self._schema.names or None


def _joined(tables: list[pa.Table]) -> list[pa.Table]:
    return [pa.concat_tables(tables, promote_options="permissive")] if tables else []


def _as_lines(file: Address) -> bytes:
    """A file that is one array of objects (or one object) as JSON Lines."""
    value = json.loads(file.read())
    rows = value if isinstance(value, list) else [value]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _parse(chunk: bytes, schema: pa.Schema) -> pa.Table:
    options = paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    reading = paj.ReadOptions(block_size=max(_BLOCK, len(chunk) + 1), use_threads=False)
    return paj.read_json(io.BytesIO(chunk), reading, options)
