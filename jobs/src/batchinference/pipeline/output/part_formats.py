"""Reads the files of an output back as tables and writes them again, without changing a value."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from batchinference.pipeline.commit.manifest import Content
from batchinference.pipeline.output.writers.json import to_json
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.spec.write import Write, WriteCsv, WriteJson, WriteParquet


class PartFormat(Protocol):
    """A format whose files can be rewritten."""

    @property
    def typed(self) -> bool:
        """Whether tables have the types of the columns. Otherwise all columns are encoded text."""

    def read(self, content: bytes) -> pa.Table:
        """Return the rows of a file."""

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
        return read_table(pa.BufferReader(content)).replace_schema_metadata()

    def write(self, table: pa.Table) -> Content:
        ((_, content),) = ParquetWriter(self.compression).files(table)
        return content


@dataclass(frozen=True)
class JsonParts:
    """JSON Lines. Each value is a JSON text. Null is the JSON text `null`, or no value."""

    gzip: bool
    typed = False

    def read(self, content: bytes) -> pa.Table:
        rows = [json.loads(line) for line in _unpacked(content, self.gzip).split(b"\n")[:-1]]
        columns = {name: [to_json(row[name]) for row in rows] for name in rows[0]}
        return _texts(columns)

    def write(self, table: pa.Table) -> Content:
        names = [json.dumps(name, ensure_ascii=False) for name in table.column_names]
        columns = [column.to_pylist() for column in table.columns]
        lines = (
            ", ".join(f"{name}: {value or 'null'}" for name, value in zip(names, row, strict=True))
            for row in zip(*columns, strict=True)
        )
        return _packed("".join(f"{{{line}}}\n" for line in lines), self.gzip)


@dataclass(frozen=True)
class CsvParts:
    """Separated values. Each value is a field as it is in the file, with its quotes."""

    gzip: bool
    delimiter: str
    typed = False

    def read(self, content: bytes) -> pa.Table:
        mark = re.escape(self.delimiter)
        field = re.compile(rf'("[^"]*(?:""[^"]*)*"|[^{mark}\n]*)({mark}|\n)')
        found = field.findall(_unpacked(content, self.gzip).decode())
        width = next(number for number, (_, end) in enumerate(found, 1) if end == "\n")
        fields = [text for text, _ in found]
        return _texts(
            {name[1:-1].replace('""', '"'): fields[number + width :: width]
             for number, name in enumerate(fields[:width])}
        )  # fmt: skip

    def write(self, table: pa.Table) -> Content:
        names = ['"' + name.replace('"', '""') + '"' for name in table.column_names]
        columns = [column.to_pylist() for column in table.columns]
        rows = [names, *zip(*columns, strict=True)]
        text = "".join(self.delimiter.join(field or "" for field in row) + "\n" for row in rows)
        return _packed(text, self.gzip)


def _texts(columns: Mapping[str, Iterable[str]]) -> pa.Table:
    return pa.table({name: pa.array(texts, pa.string()) for name, texts in columns.items()})


def _unpacked(content: bytes, packed: bool) -> bytes:
    return gzip.decompress(content) if packed else content


def _packed(text: str, packed: bool) -> bytes:
    return gzip.compress(text.encode(), mtime=0) if packed else text.encode()
