"""Reads the files of an output back as tables and writes them again, without changing a value."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.manifest import Content
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.arrow_files import read_own_table
from batchinference.spec.write import Write, WriteCsv, WriteJson, WriteParquet

TEXT = pa.large_string()
"""The type of the columns of a format without types."""
ROWS = 10_000
"""Rows that are Python objects at a time, which take much more memory than the file."""
_JSON = json.JSONEncoder(ensure_ascii=False)


class PartFormat(Protocol):
    """A format whose files can be rewritten."""

    @property
    def typed(self) -> bool:
        """Whether tables have the types of the columns. Otherwise all columns are encoded text."""

    def read(self, content: bytes) -> pa.Table:
        """Return the rows of a file that this job has written. Their size is not limited."""

    def write(self, table: pa.Table) -> Content:
        """Return a file with these rows, as the writer of the format encodes them."""


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

    def write(self, table: pa.Table) -> Content:
        ((_, content),) = ParquetWriter(self.compression).files(table)
        return content


@dataclass(frozen=True)
class JsonParts:
    """JSON Lines. Each value is a JSON text. Null is the JSON text `null`, or no value."""

    gzip: bool
    typed = False

    def read(self, content: bytes) -> pa.Table:
        lines = io.BytesIO(_unpacked(content, self.gzip))
        return pa.concat_tables(map(_json_texts, iter(lambda: list(islice(lines, ROWS)), [])))

    def write(self, table: pa.Table) -> Content:
        names = [json.dumps(name, ensure_ascii=False) for name in table.column_names]
        lines = (
            ", ".join(f"{name}: {value or 'null'}" for name, value in zip(names, row, strict=True))
            for row in _rows(table)
        )
        return _packed("".join(f"{{{line}}}\n" for line in lines), self.gzip)


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
        content = _unpacked(content, self.gzip)
        marks = np.frombuffer(content, np.uint8)
        quoted = np.logical_xor.accumulate(marks == ord('"'))
        ends = np.flatnonzero(((marks == ord(self.delimiter)) | (marks == ord("\n"))) & ~quoted)
        width = int(np.argmax(marks[ends] == ord("\n"))) + 1
        # texts that alternate: a field, and the character that ends it
        bounds = np.column_stack([np.append(0, ends[:-1] + 1), ends]).ravel()
        offsets = pa.py_buffer(np.append(bounds, len(content)))
        texts = pa.LargeStringArray.from_buffers(len(bounds), offsets, pa.py_buffer(content))
        fields = texts.take(pa.array(np.arange(0, len(texts), 2)))
        names = [name[1:-1].replace('""', '"') for name in fields[:width].to_pylist()]
        places = np.arange(width, len(fields)).reshape(-1, width)
        columns = [fields.take(pa.array(column)) for column in places.T]
        return pa.table(columns, names)

    def write(self, table: pa.Table) -> Content:
        header = tuple('"' + name.replace('"', '""') + '"' for name in table.column_names)
        lines = (
            self.delimiter.join(field or "" for field in row)
            for row in chain([header], _rows(table))
        )
        return _packed("".join(f"{line}\n" for line in lines), self.gzip)


def _rows(table: pa.Table) -> Iterator[tuple[str | None, ...]]:
    for batch in table.to_batches(max_chunksize=ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _unpacked(content: bytes, packed: bool) -> bytes:
    return gzip.decompress(content) if packed else content


def _packed(text: str, packed: bool) -> bytes:
    return gzip.compress(text.encode(), mtime=0) if packed else text.encode()
