"""Reads CSV files: header, delimiter, column types of all files, and order of failed rows.

`csv_records` divides text into records, `csv_dialect` translates escapes, and `csv_column_types`
infers types. Fields are read as bytes and then converted, so a wrong value fails only its row."""

from __future__ import annotations

import codecs
import io
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from batchinference.pipeline.column_names import RENAME, check_known, check_names, unique_names
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.csv_column_types import CsvTypes
from batchinference.pipeline.input.csv_dialect import Dialect
from batchinference.pipeline.input.csv_records import (
    BLOCK_BYTES,
    LINE_END,
    CsvText,
    Damage,
    Rejected,
    parse_rows,
    parse_sample,
    read_header,
)
from batchinference.pipeline.input.encoding_check import (
    Utf8Converter,
    Utf8Stream,
    check_beginning,
    check_encoding,
)
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, describe_lacking, plain
from batchinference.pipeline.input.readers.text_lines import estimated_rows, samples_of
from batchinference.pipeline.input.signatures import HEAD_BYTES, no_csv
from batchinference.pipeline.row_warnings import RowWarning, with_warnings
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.spec.column_types import parse_types
from batchinference.spec.file_extensions import extension_of
from batchinference.spec.warnings import WarningName

if TYPE_CHECKING:
    from batchinference.spec.read import CsvOptions

MIN_ROW_BYTES, MAX_BLOCK = 1 << 20, (1 << 31) - 2
"""The lowest limit for the size of a row, and the largest block that pyarrow can read, in bytes."""
SAMPLE_BYTES = 4 << 20
"""Approximate bytes from which types are inferred, in equal parts for the sampled files. A file
that is smaller than its part is sampled completely."""
COMPARED_LINES = 20
"""Maximum number of lines, from the header on, that are searched for another delimiter."""
_DELIMITERS = (b";", b"\t", b"|", b",", b"\1")
BAD_ROWS = 10_000
"""Maximum number of rows of a BadRow."""


class CsvReader(Reader):
    other_format = staticmethod(no_csv)
    sampled_files = 1000
    block_bytes = BLOCK_BYTES

    def __init__(self, options: CsvOptions, *, adjustable: bool = True) -> None:
        """`adjustable` tells whether the user can set the options."""
        self._options, self._adjustable = plain(options), adjustable
        self._fix = "Set read.options.encoding" if adjustable else "Convert the file to UTF-8"
        is_utf8 = codecs.lookup(options.encoding).name == "utf-8"
        self._encoding = None if is_utf8 else options.encoding
        self._limit = min(max(options.row_bytes, MIN_ROW_BYTES), MAX_BLOCK)
        self._types = CsvTypes(
            declared=parse_types(options.types),
            nulls=tuple(options.null_values),
            decimal=options.decimal,
            encoding=options.encoding,
            fix=self._fix,
            escaped=bool(options.escape),
        )

    def prepare(self, samples: list[Location]) -> None:
        columns: dict[str, list[pa.Array]] = defaultdict(list)
        names: dict[str, list[str]] = {}
        damaged = ""
        for file, lines in samples_of(samples, SAMPLE_BYTES):
            sampled = self._sampled(file, lines)
            if isinstance(sampled, Damage):
                damaged = damaged or f"{file.uri}: {sampled.problem}"
                continue
            if sampled:
                names[file.uri] = list(sampled)
            for name, column in sampled.items():
                columns[name] += column.chunks
        arrays = {name: pa.chunked_array(parts, pa.binary()) for name, parts in columns.items()}
        self.lacking = describe_lacking(names)
        if damaged and not arrays:
            raise BadInput(f"read.paths: {damaged}")
        for name in self._types.declared if arrays else ():
            check_known(f"types.{name}", name, list(arrays))
        self._types = replace(self._types, sampled=self._types.infer(arrays))

    def _sampled(self, file: Location, lines: bytes) -> dict[str, pa.ChunkedArray] | Damage:
        """Return the columns (bytes) of the sample `lines` by name, or the damage of the header.
        Raises BadInput if the file needs other options."""
        check_encoding(file.uri, lines, self._options.encoding, adjustable=self._adjustable)
        content = Utf8Converter(self._encoding)(lines) if self._encoding else lines
        dialect = self._dialect(file)
        try:
            text = self._text(io.BytesIO(content), dialect)
        except ValueError as error:
            raise BadInput(f"{error} ({file.uri})") from None
        beginning = text.beginning
        try:
            names = self._names(text)
        except ValueError:
            return {}  # the file becomes a failed row when it is read
        if isinstance(names, Damage):
            return names
        if self._adjustable and self._options.delimiter is None and len(names) == 1:
            _check_delimiter(file.uri, beginning, dialect.quote)
        check_names(names, file.uri, *([RENAME] if self._adjustable else []))
        return dict(zip(names, parse_sample(text, len(names)).columns, strict=True))

    def _dialect(self, file: Location) -> Dialect:
        options = self._options
        tabs = extension_of(base_name(file.path)).startswith("tsv")
        delimiter = options.delimiter or ("\t" if tabs else ",")
        return Dialect(
            delimiter=delimiter.encode(),
            quote=options.quote.encode(),
            escape=options.escape.encode(),
            comment=options.comment.encode(),
            newlines_in_values=options.newlines_in_values,
        )

    def _text(self, source: io.BufferedIOBase, dialect: Dialect) -> CsvText:
        """Return the text of a file from the header on. Raises ValueError if a first line `sep=`
        names another delimiter than the options."""
        text = CsvText(source, dialect, self._limit, self.block_bytes)
        text.begin(self._options.skip_lines, chosen=self._options.delimiter is not None)
        return text

    def _names(self, text: CsvText) -> list[str] | Damage:
        """Return the column names in the options. If there are none, remove the header from `text`,
        and return its names or its damage."""
        names = self._options.column_names or read_header(text, self._options.encoding, self._fix)
        if isinstance(names, Damage) or self._options.duplicate_columns == "fail":
            return names
        return unique_names(names)

    def read(self, file: Location) -> Iterator[Chunk]:
        with file.open_stream() as stream:
            content = stream
            if not isinstance(stream, io.BufferedReader):  # pyarrow's streams cannot peek
                content = io.BufferedReader(cast(io.RawIOBase, stream))
            check_beginning(content.peek(HEAD_BYTES), self._options.encoding)
            if self._encoding:
                content = io.BufferedReader(Utf8Stream(content, self._encoding, self.block_bytes))
            text = self._text(content, self._dialect(file))
            names = self._names(text)
            if isinstance(names, Damage):
                yield from _bad_rows(names)
                return
            skipped = Counter({0: text.skipped_lines})
            for block in text.blocks(len(names)):
                if isinstance(block, Damage):
                    yield from _warned(_bad_rows(block), skipped)
                    continue
                rows, rejected = parse_rows(block, len(names), text.dialect)
                skipped.update(row for row, damage in rejected if damage is None)
                table, errors = self._types.cast(rows.rename_columns(names))
                if skipped.total() and len(errors) < table.num_rows:
                    table = _with_skipped(table, skipped, errors)
                    skipped.clear()
                yield from _warned(_in_order(table, errors, rejected), skipped)
            if not names and self._options.skip_lines and text.skipped_lines:
                problem = f"it leaves out all {text.skipped_lines} lines of the file"
                yield BadRow(ValueError(f"read.options.skipLines: {problem}. Use a smaller number"))

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size)

    def columns(self) -> list[str] | None:
        return list(self._types.sampled) or None

    def types(self) -> dict[str, pa.DataType]:
        kinds = {**self._types.sampled, **self._types.declared}
        return {name: arrow_type(kind) for name, kind in kinds.items()}


def _check_delimiter(uri: str, beginning: bytes, quote: bytes) -> None:
    """Raise BadInput if the first lines all have the same number of another delimiter. Called if
    the current delimiter gives one column. `beginning` is the text from the header on."""
    quoted = re.compile(b"%b[^%b]*%b" % ((re.escape(quote or b"\r"),) * 3))
    lines = [quoted.sub(b"", line) for line in LINE_END.split(beginning) if line][:COMPARED_LINES]
    for delimiter in _DELIMITERS if len(lines) > 1 else ():
        numbers = {line.count(delimiter) for line in lines}
        if len(numbers) == 1 and 0 not in numbers:
            shown = delimiter.decode().encode("unicode_escape").decode()
            raise BadInput(
                f'read.options.delimiter: {uri} has "{shown}" in each line, and one column. Set it '
                f'to "{shown}"'
            )


def _bad_rows(damage: Damage) -> Iterator[BadRow]:
    for start in range(0, damage.rows, BAD_ROWS):
        yield BadRow(ValueError(damage.problem), min(BAD_ROWS, damage.rows - start))


def _warned(chunks: Iterable[Chunk], skipped: Counter[int]) -> Iterator[Chunk]:
    """Yield the chunks. Add a warning about skipped lines to the first BadRow; clear `skipped`."""
    for chunk in chunks:
        lines = skipped.total()
        if lines and isinstance(chunk, BadRow):
            skipped.clear()
            yield replace(chunk, warnings=[RowWarning(0, WarningName.LINES_SKIPPED, lines)])
        else:
            yield chunk


def _in_order(
    table: pa.Table, errors: Mapping[int, Exception], rejected: list[Rejected]
) -> Iterator[Chunk]:
    """Yield the good and the failed rows of a block in order. `errors` maps the indexes of failed
    rows in the table to their errors. `rejected` has the failed rows that the table lacks."""
    bad = [(row, 0, damage) for row, damage in rejected if damage is not None]
    bad += [(row, 1, Damage(str(error))) for row, error in errors.items()]
    start = 0
    for row, size, damage in sorted(bad, key=lambda item: item[:2]):
        if start < row:
            yield table.slice(start, row - start)
        yield from _bad_rows(damage)
        start = row + size
    if start < table.num_rows:
        yield table.slice(start)


def _with_skipped(
    table: pa.Table, skipped: Mapping[int, int], errors: Mapping[int, Exception]
) -> pa.Table:
    """Return rows with warnings about skipped lines. `skipped` has the number of skipped lines
    before each row. A failed row (in `errors`) would lose its warning. Therefore, the next good row
    gets the warning, or else the last good row. At least one row must be good."""
    lines = Counter[int]()
    good = [row for row in range(table.num_rows) if row not in errors]
    for row, number in skipped.items():
        lines[good[min(bisect_left(good, row), len(good) - 1)]] += number
    name = WarningName.LINES_SKIPPED
    warnings = {row: [RowWarning(row, name, number)] for row, number in lines.items() if number}
    return with_warnings(table, warnings)
