"""Writes and reads CSV files with any delimiter. Nested values and bytes are written as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pac

from batchinference.json_text import to_json
from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.non_finite_counts import non_finite_values
from batchinference.pipeline.output.python_rows import (
    DAMAGE,
    ROWS_AT_ONCE,
    Row,
    unpacked,
    unreadable,
)
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.output.writers.json import (
    TEXT,
    TEXT_BYTES,
    ending,
    open_unpacked,
    packed,
    text_rows,
    with_exact_times,
)
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.text_types import typed


@dataclass(frozen=True)
class CsvWriter(RewritingWriter):
    """`read` returns the text of each field as it is in the file, including quotes. It raises
    ValueError if a record has too many or too few fields."""

    compression: str
    delimiter: str
    text_bytes: int = TEXT_BYTES

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        sink = pa.BufferOutputStream()
        options = pac.WriteOptions(delimiter=self.delimiter)
        pac.write_csv(_flat(tensors_to_lists(table)), sink, options)
        content = _without_blank_lines(sink.getvalue().to_pybytes())
        yield ending(".csv", self.compression), packed([content], self.compression)

    def rows(self, part: Location) -> Iterator[Row]:
        for batch in with_types(self.fields(part)).to_batches(ROWS_AT_ONCE):
            yield from batch.to_pylist()

    def fields(self, part: Location) -> pa.Table:
        """Return the fields of a file as `read` does. Raises BadOutput if the file is damaged."""
        try:
            fields = replace(self, compression="none").read(unpacked(part))
            fields.validate(full=True)
        except DAMAGE as error:
            raise unreadable(part, error) from None
        return fields

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        table = tensors_to_lists(table)
        nested = [field.name for field in table.schema if not _is_flat(field.type)]
        return non_finite_values(table.select(nested))

    def read(self, content: bytes) -> pa.Table:
        tables: list[pa.Table] = []
        names: list[str] = []
        with open_unpacked(content, self.compression) as file:
            for text in _records(file, self.text_bytes):
                fields, widths = self._fields(text)
                header = [] if names else _without_quotes(fields[: widths[0]]).to_pylist()
                names = names or header
                if (widths != len(names)).any():
                    raise ValueError("the records have different numbers of fields")
                indexes = np.arange(len(header), len(fields)).reshape(-1, len(names))
                columns = [fields.take(pa.array(column)) for column in indexes.T]
                tables.append(pa.table(columns, names))
        return pa.concat_tables(tables)

    def _fields(self, text: bytes) -> tuple[pa.Array, np.ndarray]:
        """Return the fields of all records in `text`, and the number of fields of each record."""
        marks = np.frombuffer(text, np.uint8)
        separators = (marks == ord(self.delimiter)) | (marks == ord("\n"))
        ends = np.flatnonzero(separators & ~_quoted(marks))
        starts = np.append(0, ends[:-1] + 1)
        is_last = marks[ends] == ord("\n")
        ends = ends - (is_last & (marks[ends - 1] == ord("\r")))  # other programs may write CRLF
        # divide into texts that alternate: a field, the separator after it, the next field, ...
        bounds = np.column_stack([starts, ends]).ravel()
        offsets = pa.py_buffer(np.append(bounds, len(text)))
        texts = pa.LargeStringArray.from_buffers(len(bounds), offsets, pa.py_buffer(text))
        widths = np.diff(np.flatnonzero(is_last), prepend=-1)
        return texts.take(pa.array(np.arange(0, len(texts), 2))), widths

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


def with_types(fields: pa.Table) -> pa.Table:
    """Convert the fields from `read` to values. A column with quotes in any field gets texts, such
    as `007`. Any other column gets a type from which the same texts can be written again."""
    null = pa.array(["", '""'] if fields.num_columns == 1 else [""], TEXT)
    return pa.table([_values(column, null) for column in fields.columns], fields.column_names)


def _values(fields: pa.ChunkedArray, null: pa.Array) -> pa.ChunkedArray:
    present = pc.if_else(pc.is_in(fields, null), None, fields)
    if not pc.any(pc.starts_with(present, '"')).as_py():
        return typed(present)
    return _without_quotes(pc.if_else(pc.equal(fields, ""), None, fields)).cast(pa.string())


def _without_quotes(fields: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.replace_substring(pc.replace_substring_regex(fields, '^"|"$', ""), '""', '"')


def _records(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the content of a CSV file in parts of about `size` bytes. Each part has only complete
    records. Raises ValueError if the last record is not complete."""
    rest = b""
    while more := file.read(size):
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
    """Return a mask (bool) of the bytes between quotes. The first byte begins a record."""
    return np.asarray(np.logical_xor.accumulate(marks == ord('"')))


def _without_blank_lines(content: bytes) -> bytes:
    """Return CSV content with `""` instead of blank lines. Readers would skip these lines, which
    are rows whose only column is null."""
    marks = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero((marks == ord("\n")) & ~_quoted(marks))
    blank = ends[1:][np.diff(ends) == 1].tolist()
    return b'""'.join(content[start:end] for start, end in pairwise([0, *blank, len(content)]))


def _flat(table: pa.Table) -> pa.Table:
    """Return the table with texts in place of values that pyarrow cannot write to CSV. Lists,
    structs and bytes become JSON texts."""
    for index, field in enumerate(table.schema):
        if not _is_flat(field.type):
            values = with_exact_times(table.select([index])).column(0).to_pylist()
            texts = [_text(value) for value in values]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table


def _is_flat(kind: pa.DataType) -> bool:
    """Return whether pyarrow writes the values of a type to CSV as readable text."""
    if pa.types.is_dictionary(kind):
        return _is_flat(kind.value_type)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    number = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return text or (number and not (pa.types.is_duration(kind) or pa.types.is_interval(kind)))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    json = isinstance(value, bool | bytes | list | dict | tuple)
    return to_json(value) if json else str(value)
