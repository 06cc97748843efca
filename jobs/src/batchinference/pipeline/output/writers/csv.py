"""Writes and reads CSV files with any delimiter. Nested values and bytes are written as JSON."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pac

from batchinference.json_text import to_json
from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.non_finite import non_finite_values
from batchinference.pipeline.output.python_rows import (
    DAMAGE,
    ROWS_AT_ONCE,
    Row,
    unpacked,
    unreadable,
)
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.output.writers.json import (
    TEXT_BYTES,
    ending,
    opened,
    packed,
    text_rows,
    with_exact_times,
)
from batchinference.pipeline.storage.location import Location

_LARGEST_BLOCK = (1 << 31) - 1


@dataclass(frozen=True)
class CsvWriter(RewritingWriter):
    """`read` returns the text of each field as it is in the file, including quotes."""

    compression: str
    delimiter: str

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        sink = pa.BufferOutputStream()
        options = pac.WriteOptions(delimiter=self.delimiter)
        pac.write_csv(_flat(tensors_to_lists(table)), sink, options)
        content = _without_blank_lines(sink.getvalue().to_pybytes())
        yield ending(".csv", self.compression), packed([content], self.compression)

    def rows(self, part: Location) -> Iterator[Row]:
        for batch in self.table(part).to_batches(ROWS_AT_ONCE):
            yield from batch.to_pylist()

    def table(self, part: Location, texts: Sequence[str] = ()) -> pa.Table:
        """Return the rows of a CSV file. The columns `texts`, and those with values in quotes, stay
        text. Others get a type."""
        parse = pac.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        try:
            content = unpacked(part)
            convert = pac.ConvertOptions(
                column_types=dict.fromkeys([*texts, *self._quoted_columns(content)], pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            )
            # one block, because pyarrow drops the LF of a CRLF within a text if a block begins with
            # it; one thread, because another thread could free the content while the interpreter
            # exits, which aborts the process
            block = min(len(content) + 1, _LARGEST_BLOCK)
            reading = pac.ReadOptions(use_threads=False, block_size=block)
            return pac.read_csv(io.BytesIO(content), reading, parse, convert)
        except DAMAGE as error:
            raise unreadable(part, error) from None

    def _quoted_columns(self, content: bytes) -> Iterator[str]:
        """Yield the columns with values in quotes. These were texts, also if they are `007`."""
        fields = replace(self, compression="none").read(content)
        for name, column in zip(fields.column_names, fields.columns, strict=True):
            if pc.any(pc.starts_with(column, '"')).as_py():
                yield name

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        table = tensors_to_lists(table)
        nested = [field.name for field in table.schema if not _is_flat(field.type)]
        return non_finite_values(table.select(nested))

    def read(self, content: bytes) -> pa.Table:
        tables: list[pa.Table] = []
        names: list[str] = []
        with opened(content, self.compression) as file:
            for text in _records(file):
                fields, width = self._fields(text)
                header = [] if names else fields[:width].to_pylist()
                names = names or [name[1:-1].replace('""', '"') for name in header]
                indexes = np.arange(len(header), len(fields)).reshape(-1, len(names))
                columns = [fields.take(pa.array(column)) for column in indexes.T]
                tables.append(pa.table(columns, names))
        return pa.concat_tables(tables)

    def _fields(self, text: bytes) -> tuple[pa.Array, int]:
        """Return the fields of all records in `text`, and the number of fields of a record."""
        marks = np.frombuffer(text, np.uint8)
        separators = (marks == ord(self.delimiter)) | (marks == ord("\n"))
        ends = np.flatnonzero(separators & ~_quoted(marks))
        # divide into texts that alternate: a field, the separator after it, the next field, ...
        bounds = np.column_stack([np.append(0, ends[:-1] + 1), ends]).ravel()
        offsets = pa.py_buffer(np.append(bounds, len(text)))
        texts = pa.LargeStringArray.from_buffers(len(bounds), offsets, pa.py_buffer(text))
        width = int(np.argmax(marks[ends] == ord("\n"))) + 1
        return texts.take(pa.array(np.arange(0, len(texts), 2))), width

    def write(self, tables: Iterable[pa.Table]) -> bytes:
        return packed((line.encode() for line in self._lines(tables)), self.compression)

    def _lines(self, tables: Iterable[pa.Table]) -> Iterator[str]:
        for number, table in enumerate(tables):
            if number == 0:
                names = ('"' + name.replace('"', '""') + '"' for name in table.column_names)
                yield self.delimiter.join(names) + "\n"
            for row in text_rows(table):
                empty = "" if len(row) > 1 else '""'
                yield self.delimiter.join(field or empty for field in row) + "\n"


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a CSV file in parts of about TEXT_BYTES that end with a record. Raises
    ValueError if the last record is not complete."""
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
    """Return which bytes (bool) are between quotes. The first byte begins a record."""
    return np.asarray(np.logical_xor.accumulate(marks == ord('"')))


def _without_blank_lines(content: bytes) -> bytes:
    """Return CSV content with `""` in place of blank lines, which are rows with one null, because
    readers skip blank lines."""
    marks = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero((marks == ord("\n")) & ~_quoted(marks))
    blank = ends[1:][np.diff(ends) == 1].tolist()
    return b'""'.join(content[start:end] for start, end in pairwise([0, *blank, len(content)]))


def _flat(table: pa.Table) -> pa.Table:
    """Return the table with JSON text in place of lists, structs and bytes, and text in place of
    durations and extension types."""
    for index, field in enumerate(table.schema):
        if not _is_flat(field.type):
            values = with_exact_times(table.select([index])).column(0).to_pylist()
            texts = [_text(value) for value in values]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table


def _is_flat(kind: pa.DataType) -> bool:
    """Return whether pyarrow writes values of a type as text that people can read."""
    if pa.types.is_dictionary(kind):
        return _is_flat(kind.value_type)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    number = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return text or (number and not pa.types.is_duration(kind))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    json = isinstance(value, bool | bytes | list | dict | tuple)
    return to_json(value) if json else str(value)
