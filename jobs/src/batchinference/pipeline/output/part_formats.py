"""Reads the files of an output back as tables and writes them again, without changing a value."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.commit.manifest import Content
from batchinference.pipeline.storage.arrow_files import read_own_table
from batchinference.spec.write import Write, WriteCsv, WriteJson, WriteParquet

TEXT = pa.large_string()
"""The type of the columns of a format without types."""
ROWS, TEXT_BYTES = 10_000, 8 << 20
"""Rows, and bytes of text, that are Python objects or fields at a time. These take much more memory
than the text."""
ROW_GROUP_BYTES = 64 << 20
"""The memory of the rows that complete a row group."""
_JSON = json.JSONEncoder(ensure_ascii=False)


class PartFormat(Protocol):
    """A format whose files can be rewritten."""

    @property
    def typed(self) -> bool:
        """Whether tables have the types of the columns. Otherwise all columns are encoded text."""

    def read(self, content: bytes) -> pa.Table:
        """Return the rows of a file that this job has written. Their size is not limited."""

    def write(self, tables: Iterable[pa.Table]) -> Content:
        """Return a file with the rows of tables of one schema, as the writer of the format encodes
        them. Each table is encoded before the next one is taken, so that `tables` may read them one
        after the other."""


def part_format_of(write: Write) -> PartFormat | None:
    """Return the format of an output; None if its files are not rewritten."""
    match write:
        case WriteParquet():
            return ParquetParts(write.compression)
        case WriteJson():
            return JsonParts(write.compression == "gzip")
        case WriteCsv():
            return CsvParts(write.compression == "gzip", write.delimiter)
    return None


@dataclass(frozen=True)
class ParquetParts:
    compression: str
    typed = True

    def read(self, content: bytes) -> pa.Table:
        return read_own_table(content).replace_schema_metadata()

    def write(self, tables: Iterable[pa.Table]) -> Content:
        sink = pa.BufferOutputStream()
        writer: pq.ParquetWriter | None = None
        with ExitStack() as opened:
            for group in _row_groups(tables):
                if writer is None:
                    writer = pq.ParquetWriter(sink, group.schema, compression=self.compression)
                    opened.enter_context(writer)
                writer.write_table(group)
        return memoryview(sink.getvalue())


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    group: list[pa.Table] = []
    size = 0
    for table in tables:
        group.append(table)
        size += table.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.concat_tables(group)
            group, size = [], 0
    if group:
        yield pa.concat_tables(group)


@dataclass(frozen=True)
class JsonParts:
    """JSON Lines. Each value is a JSON text. Null is the JSON text `null`, or no value."""

    gzip: bool
    typed = False

    def read(self, content: bytes) -> pa.Table:
        with _opened(content, self.gzip) as file:
            lines = iter(lambda: file.readlines(TEXT_BYTES), [])
            return pa.concat_tables(map(_json_texts, lines))

    def write(self, tables: Iterable[pa.Table]) -> Content:
        return _packed((line for table in tables for line in self._lines(table)), self.gzip)

    def _lines(self, table: pa.Table) -> Iterator[str]:
        names = [json.dumps(name, ensure_ascii=False) for name in table.column_names]
        for row in _rows(table):
            fields = (f"{name}: {value or 'null'}" for name, value in zip(names, row, strict=True))
            yield f"{{{', '.join(fields)}}}\n"


def _json_texts(lines: list[bytes]) -> pa.Table:
    rows = [json.loads(line) for line in lines]
    texts = {name: [_JSON.encode(row[name]) for row in rows] for name in rows[0]}
    return pa.table({name: pa.array(column, TEXT) for name, column in texts.items()})


@dataclass(frozen=True)
class CsvParts:
    """Separated values. Each value is a field as it is in the file, with its quotes."""

    gzip: bool
    delimiter: str
    typed = False

    def read(self, content: bytes) -> pa.Table:
        tables: list[pa.Table] = []
        names: list[str] = []
        with _opened(content, self.gzip) as file:
            for text in _records(file):
                fields, width = self._fields(text)
                header = 0 if names else width
                names = names or [
                    name[1:-1].replace('""', '"') for name in fields[:width].to_pylist()
                ]
                places = np.arange(header, len(fields)).reshape(-1, len(names))
                columns = [fields.take(pa.array(column)) for column in places.T]
                tables.append(pa.table(columns, names))
        return pa.concat_tables(tables)

    def _fields(self, text: bytes) -> tuple[pa.Array, int]:
        """Return the fields of records, and the number of fields of the first one."""
        marks = np.frombuffer(text, np.uint8)
        apart = (marks == ord(self.delimiter)) | (marks == ord("\n"))
        ends = np.flatnonzero(apart & ~_quoted(marks))
        # texts that alternate: a field, and the character that ends it
        bounds = np.column_stack([np.append(0, ends[:-1] + 1), ends]).ravel()
        offsets = pa.py_buffer(np.append(bounds, len(text)))
        texts = pa.LargeStringArray.from_buffers(len(bounds), offsets, pa.py_buffer(text))
        width = int(np.argmax(marks[ends] == ord("\n"))) + 1
        return texts.take(pa.array(np.arange(0, len(texts), 2))), width

    def write(self, tables: Iterable[pa.Table]) -> Content:
        return _packed(self._lines(tables), self.gzip)

    def _lines(self, tables: Iterable[pa.Table]) -> Iterator[str]:
        for number, table in enumerate(tables):
            if number == 0:
                names = ('"' + name.replace('"', '""') + '"' for name in table.column_names)
                yield self.delimiter.join(names) + "\n"
            for row in _rows(table):
                yield self.delimiter.join(field or "" for field in row) + "\n"


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records of separated values, in parts of about TEXT_BYTES.

    Raises ValueError if the last record is not complete."""
    rest = b""
    while more := file.read(TEXT_BYTES):
        text = rest + more
        marks = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero((marks == ord("\n")) & ~_quoted(marks))
        end = int(ends[-1]) + 1 if len(ends) else 0
        if end:
            yield text[:end]
        rest = text[end:]
    if rest:
        raise ValueError("the file ends within a record")


def _quoted(marks: np.ndarray) -> np.ndarray:
    """Return which bytes (bool) are between quotes. A record begins before the first byte."""
    quoted: np.ndarray = np.logical_xor.accumulate(marks == ord('"'))
    return quoted


def _rows(table: pa.Table) -> Iterator[tuple[str | None, ...]]:
    for batch in table.to_batches(max_chunksize=ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _opened(content: bytes, packed: bool) -> BinaryIO:
    file = io.BytesIO(content)
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file


def _packed(lines: Iterable[str], packed: bool) -> bytes:
    sink, packer = io.BytesIO(), zlib.compressobj(9, wbits=31)  # the format of gzip
    for line in lines:
        sink.write(packer.compress(line.encode()) if packed else line.encode())
    return sink.getvalue() + (packer.flush() if packed else b"")
