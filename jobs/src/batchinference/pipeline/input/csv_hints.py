"""Recognizes samples of CSV files that need other options.

A job with a hint is refused. So there is none unless the sample leaves no doubt.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.csv_dialect import Dialect

COMPARED_LINES = 20
"""Lines from the header on whose numbers of fields are compared."""
_DELIMITERS = (b";", b"\t", b"|", b",", b"\1")
_DOUBLED = re.compile(rb'[^,;\t|\r\n]""[^,;\t|\r\n]')
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Hint(NamedTuple):
    """An option, and what is wrong without it."""

    option: str
    problem: str


class CsvSample(NamedTuple):
    """The beginning of a file, and how it was read: with how many columns, rows, and damages."""

    content: bytes
    dialect: Dialect
    header: int
    """Where the header begins in the content."""
    columns: int
    rows: int
    damages: int

    @property
    def lines(self) -> list[bytes]:
        """The first lines from the header on, without blank ones."""
        beginning = self.content[self.header : self.header + (1 << 16)]
        return [line for line in _LINE_END.split(beginning) if line][:COMPARED_LINES]

    def fields(self, delimiter: bytes) -> list[int]:
        """Return the numbers of fields of these lines."""
        quote = re.escape(self.dialect.quote or b"\r")
        quoted = re.compile(quote + b"[^" + quote + b"]*" + quote)
        return [1 + quoted.sub(b"", line).count(delimiter) for line in self.lines]


def check_options(
    uri: str, sample: CsvSample, damages_with: Callable[[Dialect], int], *, delimiter: bool
) -> None:
    """Raise BadInput if a file needs other options. `damages_with` returns the number of damages if
    it is read as another dialect. `delimiter` says whether the delimiter may be another one."""
    hint = (
        (_delimiter_hint(sample) if delimiter and sample.columns == 1 else None)
        or _header_hint(sample)
        or (_escape_hint(sample, damages_with) if sample.damages else None)
    )
    if hint:
        option, problem = hint
        raise BadInput(f"read.options.{option}: {uri} {problem}")


def _delimiter_hint(sample: CsvSample) -> Hint | None:
    """Return a hint if each line, with one field, has the same number of another delimiter."""
    for delimiter in _DELIMITERS:
        numbers = sample.fields(delimiter)
        if len(numbers) > 1 and len(set(numbers)) == 1 and numbers[0] > 1:
            shown = delimiter.decode().encode("unicode_escape").decode()
            return Hint(
                "delimiter", f'has "{shown}" in each line, and one column. Set it to "{shown}"'
            )
    return None


def _header_hint(sample: CsvSample) -> Hint | None:
    """Return a hint if no row has as many fields as the header, but all have the same number."""
    lines, delimiter = sample.lines, sample.dialect.delimiter
    numbers = sample.fields(delimiter)
    first = numbers.index(numbers[-1]) if numbers else 0
    rows = numbers[first:]
    comments = all(line.startswith(b"#") for line in lines[:first])
    if not first or len(rows) < 2 or len(set(rows)) > 1 or rows[0] == 1:
        return None
    if sample.rows and not comments:
        return None
    problem = f"has lines of {rows[0]} fields, but the first line has {numbers[0]}"
    if comments:
        return Hint("comment", f'{problem}. Set it to "#"')
    if rows[0] == numbers[0] + 1 and all(line.endswith(delimiter) for line in lines[first:]):
        fix = f"Set it to the names of all {rows[0]} columns, and skipLines to 1"
        return Hint("columnNames", f"{problem}: it has no last delimiter. {fix}")
    before = sample.content[: sample.content.index(lines[first], sample.header)]
    number = len(_LINE_END.findall(before))
    return Hint("skipLines", f"{problem}. Set it to {number} if line {number + 1} is the header")


def _escape_hint(sample: CsvSample, damages_with: Callable[[Dialect], int]) -> Hint | None:
    """Return a hint if backslashes before quotes explain all damages, and no quote is doubled."""
    dialect, content = sample.dialect, sample.content
    if dialect.escape or b"\\" + dialect.quote not in content or _DOUBLED.search(content):
        return None
    if damages_with(replace(dialect, escape=b"\\")):
        return None
    return Hint("escape", r'has backslashes before quotes in values. Set it to "\\"')
