"""Reads CSV files with pyarrow.

Every field is read as bytes and then converted, so a value of the wrong type fails only its own
row. Column types are declared, or inferred from the first rows of many files, and apply to all
files. A column without a type is text.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pac

from batchinference.pipeline.column_names import RENAME, check_names, unique_names
from batchinference.pipeline.column_types import arrow_type
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.csv_dialect import Dialect
from batchinference.pipeline.input.csv_structure import Damage
from batchinference.pipeline.input.csv_text import BLOCK_BYTES, MARKER, Block, CsvText
from batchinference.pipeline.input.csv_types import CsvTypes
from batchinference.pipeline.input.readers import MAX_COLUMNS, BadRow, Chunk, Reader
from batchinference.pipeline.input.readers.encodings import Utf8Converter, Utf8Stream, is_utf8
from batchinference.pipeline.input.readers.records import estimated_rows, samples_of
from batchinference.pipeline.row_warnings import RowWarning, with_warnings
from batchinference.pipeline.storage.csv_columns import check_columns
from batchinference.pipeline.storage.location import Location
from batchinference.spec.column_types import parse_types
from batchinference.spec.warnings import WarningName

if TYPE_CHECKING:
    from batchinference.spec.read import CsvOptions

MAX_BLOCK = (1 << 31) - 2
"""The maximum size of a block of pyarrow."""
_NAMES = [f"f{number}" for number in range(MAX_COLUMNS)]
BAD_ROWS = 10_000
"""Maximum number of rows of a BadRow."""
Rejected = list[tuple[int, Damage | None]]
"""The numbers of rejected lines, from 1, and their damage; None for a comment."""


class CsvReader(Reader):
    sampled_files = 256

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        self._encoding = None if is_utf8(options.encoding) else options.encoding
        self._limit = min(max(options.row_bytes, BLOCK_BYTES), MAX_BLOCK)
        self._types = CsvTypes(
            declared=parse_types(options.types),
            nulls=tuple(options.null_values),
            decimal=options.decimal,
            encoding=options.encoding,
        )

    def prepare(self, samples: list[Location]) -> None:
        columns: dict[str, list[pa.Array]] = defaultdict(list)
        for file, lines in samples_of(samples):
            for name, column in self._columns(file, lines).items():
                columns[name] += column.chunks
        arrays = {name: pa.chunked_array(parts, pa.binary()) for name, parts in columns.items()}
        self._types = replace(self._types, sampled=self._types.infer(arrays))

    def _columns(self, file: Location, lines: bytes) -> dict[str, pa.ChunkedArray]:
        """Return the columns of a sample as bytes; none if its beginning is damaged."""
        content = Utf8Converter(self._encoding)(lines) if self._encoding else lines
        try:
            text = self._text(io.BytesIO(content), file)
        except ValueError as error:
            raise BadInput(f"{error} ({file.uri})") from None
        try:
            names = self._header(text)
        except ValueError:
            return {}  # the file becomes a failed row when it is read
        if isinstance(names, Damage):
            return {}
        check_names(names, file.uri, RENAME)
        blocks = [block for block in text.blocks(len(names)) if isinstance(block, Block)]
        tables = [_parsed(block, len(names), text.dialect)[0] for block in blocks]
        if not tables:
            return {name: pa.chunked_array([], pa.binary()) for name in names}
        return dict(zip(names, pa.concat_tables(tables).columns, strict=True))

    def _text(self, source: io.BufferedIOBase, file: Location) -> CsvText:
        """Return the text of a file from its header on. Raises ValueError if its first line names
        another delimiter than the options."""
        options = self._options
        tabs = file.path.lower().removesuffix(".gz").endswith(".tsv")
        delimiter = options.delimiter or ("\t" if tabs else ",")
        characters = (delimiter, options.quote, options.escape, options.comment)
        dialect = Dialect(*map(str.encode, characters), options.newlines_in_values)
        text = CsvText(source, dialect, self._limit)
        text.begin(options.skip_lines, chosen=options.delimiter is not None)
        return text

    def _header(self, text: CsvText) -> list[str] | Damage:
        """Return the column names, and read the header if there is one."""
        if self._options.column_names is not None:
            return self._options.column_names
        header = text.header()
        if isinstance(header, Damage) or not header:
            return header or []
        check_columns(header, text.dialect.delimiter)
        block = Block(header + b"\n", [])  # without a line end, pyarrow finds no line
        columns = _parse(block, 0, text.dialect)[0].num_columns
        table, _ = _parse(block, columns, text.dialect)
        try:
            names = [column[0].as_py().decode() for column in table.columns]
        except UnicodeDecodeError:
            encoding = self._options.encoding
            return text.rest(f"the header is not valid in the encoding {encoding}", header)
        names = [name or f"column_{number}" for number, name in enumerate(names, 1)]
        return unique_names(names) if self._options.duplicate_columns == "rename" else names

    def read(self, file: Location) -> Iterator[Chunk]:
        with file.open_stream() as source:
            content = Utf8Stream(source, self._encoding) if self._encoding else source
            text = self._text(io.BufferedReader(content), file)
            names = self._header(text)
            if isinstance(names, Damage):
                yield from _bad_rows(names)
                return
            for block in text.blocks(len(names)):
                if isinstance(block, Damage):
                    yield from _bad_rows(block)
                else:
                    table, rejected = _parsed(block, len(names), text.dialect)
                    typed, errors = self._types.cast(table.rename_columns(names))
                    yield from _in_order(typed, errors, rejected)

    def rows_in(self, file: Location, size: int) -> int | None:
        return estimated_rows(file, size)

    def columns(self) -> list[str] | None:
        return list(self._types.sampled) or None

    def types(self) -> dict[str, pa.DataType]:
        sampled = {name: sample.kind for name, sample in self._types.sampled.items()}
        types = {**sampled, **self._types.declared}
        return {name: arrow_type(kind) for name, kind in types.items()}


def _parsed(block: Block, columns: int, dialect: Dialect) -> tuple[pa.Table, Rejected]:
    """Return the rows of a block as bytes, and the lines that are no rows."""
    try:
        return _parse(block, columns, dialect)
    except pa.ArrowInvalid:
        # pyarrow cannot skip a line with a wrong number of fields that is not UTF-8. If it gets
        # each byte as a character of Latin-1, all lines are UTF-8
        content = bytes(block.content).decode("latin-1").encode()
        table, rejected = _parse(block._replace(content=content), columns, dialect, latin=True)
        original = [
            pa.array(
                [value.decode().encode("latin-1") for value in column.to_pylist()], pa.binary()
            )
            for column in table.columns
        ]
        return pa.table(original, table.column_names), rejected


def _parse(
    block: Block, columns: int, dialect: Dialect, *, latin: bool = False
) -> tuple[pa.Table, Rejected]:
    """Return rows of so many columns of bytes, or of any columns if it is 0."""
    removed, rejected = iter(block.removed), Rejected()

    def reject(row: pac.InvalidRow) -> str:
        damage = next(removed, None) if row.text.startswith(MARKER) else _ragged(row, latin=latin)
        rejected.append((row.number, damage))
        return "skip"

    reading = pac.ReadOptions(
        column_names=_NAMES[:columns] or None,
        autogenerate_column_names=not columns,
        use_threads=False,
        block_size=len(block.content) + 1,
    )
    buffer = pa.BufferReader(block.content)
    parsing = _parse_options(dialect, reject)
    return pac.read_csv(buffer, reading, parsing, _as_bytes(columns)), rejected


@lru_cache
def _as_bytes(columns: int) -> pac.ConvertOptions:
    """Return the options for the first columns as bytes. In text columns, pyarrow would validate the encoding
    of a whole block at once."""
    return pac.ConvertOptions(column_types=dict.fromkeys(_NAMES[:columns], pa.binary()))


def _parse_options(
    dialect: Dialect, reject: Callable[[pac.InvalidRow], str] | None = None
) -> pac.ParseOptions:
    return pac.ParseOptions(
        delimiter=dialect.delimiter.decode(),
        quote_char=dialect.quote.decode() or False,
        escape_char=dialect.escape.decode() or False,
        invalid_row_handler=reject,
    )


def _ragged(row: pac.InvalidRow, *, latin: bool) -> Damage:
    text = row.text.encode("latin-1").decode(errors="replace") if latin else row.text
    fields = f"line has {row.actual_columns} fields instead of {row.expected_columns}"
    return Damage(f"{fields}: {text[:200]}")


def _bad_rows(damage: Damage) -> Iterator[BadRow]:
    for start in range(0, damage.rows, BAD_ROWS):
        yield BadRow(ValueError(damage.problem), min(BAD_ROWS, damage.rows - start))


def _in_order(
    table: pa.Table, errors: Mapping[int, Exception], rejected: Rejected
) -> Iterator[Chunk]:
    """Yield the rows of a block. `errors` are those of rows of the table, and the rejected lines
    are between these rows."""
    before = [(number - 1 - index, damage) for index, (number, damage) in enumerate(rejected)]
    comments = Counter(row for row, damage in before if damage is None)
    if comments and table.num_rows:
        last = table.num_rows - 1
        warnings = defaultdict(list)
        for row, lines in comments.items():
            warnings[min(row, last)].append(RowWarning(row, WarningName.LINES_SKIPPED, lines))
        table = with_warnings(table, warnings)
    bad = [(row, 0, damage) for row, damage in before if damage is not None]
    bad += [(row, 1, BadRow(error)) for row, error in errors.items()]
    start = 0
    for row, size, damage in sorted(bad, key=lambda item: item[:2]):
        if start < row:
            yield table.slice(start, row - start)
        yield from [damage] if isinstance(damage, BadRow) else _bad_rows(damage)
        start = row + size
    if start < table.num_rows:
        yield table.slice(start)
