"""Reads text files, one row per line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.input.encoding_check import check_beginning, check_encoding
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, grouped, or_bad
from batchinference.pipeline.input.readers.text_lines import (
    CHUNK_BYTES,
    estimated_rows,
    line_chunks,
    read_whole,
    samples_of,
)
from batchinference.pipeline.storage.location import Location
from batchinference.text import decode_text

if TYPE_CHECKING:
    from batchinference.spec.read import TextOptions


class TextReader(Reader):
    chunk_bytes = CHUNK_BYTES

    def __init__(self, options: TextOptions) -> None:
        self._encoding = options.encoding
        self._row_bytes = options.row_bytes
        self._drop_empty = options.drop_empty_lines
        self._by_line = "\n".encode(options.encoding) == b"\n"

    def prepare(self, samples: list[Location]) -> None:
        for file, lines in samples_of(samples):
            check_encoding(file.uri, lines, self._encoding)

    def read(self, file: Location) -> Iterator[Chunk]:
        limit, size = self._row_bytes, self.chunk_bytes
        chunks = line_chunks(file, limit, size) if self._by_line else [read_whole(file, limit)]
        for number, content in enumerate(chunks):
            decode = bytes.decode if number else decode_text
            if isinstance(content, BadRow):
                yield content
                continue
            chunk = content
            if number == 0:
                check_beginning(chunk, self._encoding)
                if self._by_line and b"\n" not in chunk:  # lines of old Macs end with a CR
                    chunk = chunk.replace(b"\r", b"\n")
            try:
                yield self._table(self._lines(decode(chunk, self._encoding)))
            except UnicodeDecodeError as error:
                yield from self._one_by_one(chunk) if self._by_line else [BadRow(error)]

    def _one_by_one(self, chunk: bytes) -> Iterator[Chunk]:
        """Yield the rows of a chunk, and a BadRow for each line that cannot be decoded."""
        lines = chunk.removesuffix(b"\n").split(b"\n")
        for group in grouped(or_bad(partial(line.decode, self._encoding)) for line in lines):
            if isinstance(group, BadRow):
                yield group
            else:
                yield self._table(self._lines("\n".join([*group, ""])))

    def _lines(self, text: str) -> list[str]:
        if not text:
            return []
        lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
        return [line for line in lines if line.strip()] if self._drop_empty else lines

    def _table(self, lines: list[str]) -> pa.Table:
        return pa.table({"text": pa.array(lines, pa.string())})

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size)

    def columns(self) -> list[str]:
        return ["text"]

    def types(self) -> dict[str, pa.DataType]:
        return {"text": pa.string()}
