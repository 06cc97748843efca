"""Parses CSV text with pyarrow. All fields are read as bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as pac

from batchinference.pipeline.input.csv_dialect import Dialect
from batchinference.pipeline.input.csv_text import MARKER, Block, CsvText, Damage
from batchinference.text import counted

SHOWN_CHARACTERS = 200


class Rejected(NamedTuple):
    """A line that is no row: the number of rows before it, and its damage; None for a comment."""

    row: int
    damage: Damage | None


class Rows(NamedTuple):
    """The rows of a block as bytes, and the lines between them that are no rows."""

    table: pa.Table
    rejected: list[Rejected]


def read_header(text: CsvText, encoding: str, fix: str) -> list[str] | Damage:
    """Read the header, and return the column names. A column without a name gets one from its
    position. `fix` says what to do if it is not in the encoding."""
    header = text.header()
    if isinstance(header, Damage) or not header:
        return header or []
    block = Block(header + b"\n", [])  # without a line end, pyarrow finds no line
    columns = _parse(block, 0, text.dialect).table.num_columns
    table = _parse(block, columns, text.dialect).table
    try:
        names = [column[0].as_py().decode() for column in table.columns]
    except UnicodeDecodeError:
        problem = f"the header is not valid in the encoding {encoding}"
        return text.rest(problem, header, fix)
    return [name or f"column_{number}" for number, name in enumerate(names, 1)]


def parse_rows(block: Block, columns: int, dialect: Dialect) -> Rows:
    """Return the rows of a block."""
    try:
        return _parse(block, columns, dialect)
    except pa.ArrowInvalid:
        # pyarrow cannot skip a line with a wrong number of fields that is not UTF-8. If it gets
        # each byte as a character of Latin-1, all lines are UTF-8
        latin = bytes(block.content).decode("latin-1").encode()
        table, rejected = _parse(block._replace(content=latin), columns, dialect, latin=True)
        original = [
            pa.array(
                [value.decode().encode("latin-1") for value in column.to_pylist()], pa.binary()
            )
            for column in table.columns
        ]
        return Rows(pa.table(original, table.column_names), rejected)


def parse_sample(text: CsvText, columns: int) -> pa.Table:
    """Return all rows of a text."""
    blocks = (block for block in text.blocks(columns) if isinstance(block, Block))
    empty = pa.table([pa.array([], pa.binary())] * columns, _names(columns))
    return pa.concat_tables([empty, *(parse_rows(b, columns, text.dialect).table for b in blocks)])


def _parse(block: Block, columns: int, dialect: Dialect, *, latin: bool = False) -> Rows:
    """Return rows of so many columns, or of as many as the first line has if it is 0."""
    removed, rejected = iter(block.removed), list[Rejected]()

    def reject(row: pac.InvalidRow) -> str:
        if row.text.startswith(MARKER):
            damage = next(removed, None)
        else:
            damage = _ragged(row, dialect, latin=latin)
        rejected.append(Rejected(row.number - 1 - len(rejected), damage))
        return "skip"

    reading = pac.ReadOptions(
        column_names=_names(columns) or None,
        autogenerate_column_names=not columns,
        use_threads=False,
        block_size=len(block.content) + 1,
    )
    content = pa.BufferReader(block.content)
    table = pac.read_csv(content, reading, _parsing(dialect, reject), _as_bytes(columns))
    return Rows(table, rejected)


@lru_cache
def _names(columns: int) -> list[str]:
    return [f"f{number}" for number in range(columns)]


@lru_cache
def _as_bytes(columns: int) -> pac.ConvertOptions:
    """Return the options for columns of bytes. In text columns, pyarrow would validate the encoding
    of a whole block at once."""
    return pac.ConvertOptions(column_types=dict.fromkeys(_names(columns), pa.binary()))


def _parsing(dialect: Dialect, reject: Callable[[pac.InvalidRow], str]) -> pac.ParseOptions:
    return pac.ParseOptions(
        delimiter=dialect.delimiter.decode(),
        quote_char=dialect.quote.decode() or False,
        escape_char=dialect.escape.decode() or False,
        invalid_row_handler=reject,
    )


def _ragged(row: pac.InvalidRow, dialect: Dialect, *, latin: bool) -> Damage:
    delimiter, quote = dialect.delimiter.decode(), dialect.quote.decode()
    text = row.text.encode("latin-1").decode(errors="replace") if latin else row.text
    fields = f"line has {counted(row.actual_columns, 'field')} instead of {row.expected_columns}"
    problem = f"{fields}: {text[:SHOWN_CHARACTERS]}"
    if quote and f"{delimiter} {quote}" in text:
        problem += ". A quote after a space is a part of the text: remove the space"
    return Damage(problem)
