"""Writes JSON Lines files, and reads them back.

NaN and infinity become null, because JSON cannot represent them."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import pyarrow as pa

from batchinference.gzip_format import gzip_compressor
from batchinference.json_text import to_json
from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.non_finite_counts import non_finite_values
from batchinference.pipeline.output.python_rows import Row, unpacked
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import load_limited_json
from batchinference.pipeline.type_widening import cast_column, map_types

TEXT = pa.large_string()
"""The type of all columns that `read` returns for formats without types."""
ROWS, TEXT_BYTES = 10_000, 8 << 20
"""Maximum rows, and bytes of text, to convert at a time. Python objects need much more memory."""
_JSON = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True)
class JsonWriter(RewritingWriter):
    """`read` returns each value as JSON text. `write` also accepts a null for the text `null`."""

    compression: str
    text_bytes: int = TEXT_BYTES

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        rows = with_exact_times(tensors_to_lists(table)).to_pylist()
        lines = (f"{to_json(row)}\n".encode() for row in rows)
        yield ending(".jsonl", self.compression), packed(lines, self.compression)

    def rows(self, part: Location) -> Iterator[Row]:
        yield from map(load_limited_json, io.BytesIO(unpacked(part)))

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        return non_finite_values(table)

    def read(self, content: bytes) -> pa.Table:
        with open_unpacked(content, self.compression) as file:
            lines = iter(lambda: file.readlines(self.text_bytes), [])
            return pa.concat_tables(map(_json_texts, lines))

    def write(self, tables: Iterable[pa.Table]) -> bytes:
        lines = (line.encode() for table in tables for line in self._lines(table))
        return packed(lines, self.compression)

    def _lines(self, table: pa.Table) -> Iterator[str]:
        names = [json.dumps(name, ensure_ascii=False) for name in table.column_names]
        for row in text_rows(table):
            fields = (f"{name}: {value or 'null'}" for name, value in zip(names, row, strict=True))
            yield f"{{{', '.join(fields)}}}\n"


def with_exact_times(table: pa.Table) -> pa.Table:
    """Return the table with times in nanoseconds as text, because Python would round them."""
    exact, text = pa.time64("ns"), pa.string()
    kinds = [map_types(k, lambda kind: text if kind == exact else kind) for k in table.schema.types]
    columns = [*map(cast_column, table.columns, kinds)]
    return pa.table(columns, table.column_names)


def _json_texts(lines: list[bytes]) -> pa.Table:
    rows = [json.loads(line) for line in lines]
    texts = {name: [_JSON.encode(row[name]) for row in rows] for name in rows[0]}
    return pa.table({name: pa.array(column, TEXT) for name, column in texts.items()})


def text_rows(table: pa.Table) -> Iterator[tuple[str | None, ...]]:
    """Yield the rows of a table of texts, as tuples."""
    for batch in table.to_batches(max_chunksize=ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def open_unpacked(content: bytes, compression: str) -> BinaryIO:
    """Return the content of a file as a stream, decompressed."""
    file = io.BytesIO(content)
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if compression == "gzip" else file


def ending(extension: str, compression: str) -> str:
    """Return the extension of a file name, with `.gz` if the file is compressed."""
    return f"{extension}.gz" if compression == "gzip" else extension


def packed(parts: Iterable[bytes], compression: str) -> bytes:
    """Return the content of a file made of these parts, compressed if requested."""
    if compression != "gzip":
        return b"".join(parts)
    packer = gzip_compressor()
    return b"".join(map(packer.compress, parts)) + packer.flush()
