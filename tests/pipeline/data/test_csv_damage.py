"""A damaged quote in a CSV file fails its line, and no row is made of the rest of the file."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import csv_records
from plugins.messages import Messages
from support.inputs.read_files import Outcome, read_csv
from support.tiers import examples

OPEN, FOLLOWED = "a quote is not closed", "text follows a quote"
DAMAGED: dict[str, tuple[str, list[int], list[int], str]] = {
    "last field": ('a,b\n1,x\n2,"y\n3,z\n', [0, 2], [1], OPEN),
    "first field": ('a,b\n1,x\n"2,y\n3,z\n', [0, 2], [1], OPEN),
    "last line": ('a,b\n1,x\n2,"y', [0], [1], OPEN),
    "before doubled quotes": ('a,b\n1,x\n2,"y""\n\n3,z\n4,z', [0, 2, 3], [1], OPEN),
    "nothing behind it": ('a,b\n1,x\n2,"', [0], [1], OPEN),
    "before a value in quotes": ('a,b\n1,x\n2,"y\n3,z\n4,"z"\n', [0, 2, 3], [1], OPEN),
    "before a value of two lines": ('a,b\n1,x\n2,"y\n3,z\n4,"z\nz"\n', [0, 2, 3], [1], OPEN),
    "in two lines": ('a,b\n1,x\n2,"y\n3,"y\n4,z\n', [0, 3], [1, 2], OPEN),
    "after a value of two lines": ('a,b\n1,x\n"2\n2","y\n3,z\n4,z\n', [0, 2, 3], [1], OPEN),
    "CRLF": ('a,b\r\n1,x\r\n2,"y\r\n3,z\r\n', [0, 2], [1], OPEN),
    "CR": ('a,b\r1,x\r2,"y\r3,z\r', [0, 2], [1], OPEN),
    "text behind it": ('a,b\n1,x\n2,"y"z\n3,z\n', [0, 2], [1], FOLLOWED),
    "quotes in a value": ('a,b\n1,x\n2,"say "hi""\n3,z\n', [0, 2], [1], FOLLOWED),
    "quotes around a part": ('a,b\n1,x\n2,"The" film\n3,z\n', [0, 2], [1], FOLLOWED),
    "undecodable": ('a,b\n1,x\n2,\udcff,"y\n3,z\n', [0, 2], [1], OPEN),
    "quotes in a value of two lines": ('a,b\n1,x\n2,"say "hi", and\nbye"\n3,z\n', [0, 3], [1, 2],
                                       FOLLOWED),
    "a value whose second line looks like a row": (
        'a,b\n1,x\n2,"say "hi", and\nfoo,bar"\n3,z\n', [0, 3], [1, 2], FOLLOWED),
    "a value with rows in it": (
        'a,b\n1,x\n2,"say "hi":\n7,u\n8,v\nfoo,bar"\n3,z\n', [0, 5], [1, 2, 3, 4], FOLLOWED),
    "text to the end": ('a,b\n1,x\n2,"free\ntext\nof four\nlines', [0], [1, 2, 3, 4], OPEN),
    "text of a truncated file": ('a,b\n1,x\n2,"free, text\nof, two, lines', [0], [1, 2], OPEN),
    "one column": ('a\nx\n"y\nz\nz\n', [0], [1, 2, 3], OPEN),
    "one column, all in quotes": ('a\n"x"\n"y\n"z"\n"z"\n', [0], [1, 2, 3], OPEN),
    "one column, text of two lines": ('a\n"x"\n"y "y", y\ny"\n"z"\n', [0], [1, 2, 3], FOLLOWED),
}  # fmt: skip
"""Content, its good and failed rows, and the error of the first failed row."""
MIB = 1 << 20
BLOCKS = (MIB, 16, 23, 64)


def in_blocks(tmp_path: Path, content: str, block: int, **options: Any) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "BLOCK_BYTES", block)
        return read_csv(tmp_path, content.encode(errors="surrogateescape"), **options)


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_quote_fails_its_line(tmp_path: Path, case: str) -> None:
    content, good, bad, error = DAMAGED[case]
    for block in BLOCKS:
        outcome = in_blocks(tmp_path, content, block)
        assert outcome.places == [(0, row) for row in good], block
        assert sorted(outcome.bad) == [(0, row) for row in bad], block
        assert error in outcome.bad[0, bad[0]]
        assert outcome.ends == {0: len(good) + len(bad)}


def test_error_says_how_much_is_damaged_and_what_to_do(tmp_path: Path) -> None:
    one = read_csv(tmp_path, 'a,b\n1,x\n2,"open\n3,z\n').bad[0, 1]
    assert "1 line, 8 bytes" in one
    assert '2,"open' in one
    assert 'read.options.quote: ""' in one
    rest = read_csv(tmp_path, 'a\nx\n"open\n' + "z\n" * 2000).bad[0, 1]
    assert "2001 lines, 4006 bytes" in rest
    assert "newlinesInValues: false" in rest
    escaped = read_csv(tmp_path, 'a,b\n1,"x ""y"" z"\n2,"say \\"hi\\""\n').bad[0, 1]
    assert 'read.options.escape: "\\\\"' in escaped


REGULAR = {
    'a\n1\n"2"\n3\n': 3,
    'a,b\n1,x\n2,"y"': 2,
    'a,b\n1,x\n2,""': 2,
    'a,b\n1,x\n2,""""\n': 2,
    'a,b\n1,x\n2,"\n"\n': 2,
    'a,b\n1,x\n2,",y"\n\n': 2,
    'a,b\n1,x\n2,"y" \t\n3,"y" ': 3,
    'a,b\n1,x\n2,5" disk\n3,6"\n4,"z"\n': 4,
    'a,b\n1,x\n2,a "b" c\n3,"\r\n,\r\n"\n': 3,
    'a,b\n1,"3,x\n4,x\n5,x\n6,x"\n7,x\n': 2,
    'a,b\n6" disk,"\n1,x"\n2,""\n': 2,
    "a,b\n1,x\r": 1,
}
"""Content without a damaged quote, and the number of its rows."""


@pytest.mark.parametrize("content", REGULAR)
def test_regular_quotes_are_read(tmp_path: Path, content: str) -> None:
    expected = list(csv.reader(io.StringIO(content, newline="")))[1:]
    for block in BLOCKS:
        outcome = in_blocks(tmp_path, content, block)
        assert outcome.bad == {}
        assert [[str(value) for value in row.values()] for row in outcome.good] == [
            row for row in expected if row
        ]
        assert len(outcome.good) == REGULAR[content]


def test_values_of_one_line_limit_the_damage(tmp_path: Path) -> None:
    content = 'a\nx\n"open\nz\n"z\nz"\n"z"\n'
    for block in BLOCKS:
        outcome = in_blocks(tmp_path, content, block, newlinesInValues=False)
        assert [row["a"] for row in outcome.good] == ["x", "z", 'z"', "z"]
        assert sorted(outcome.bad) == [(0, 1), (0, 3)]


def test_damaged_header_is_refused(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(BadInput):
        read_csv(tmp_path, 'a,"b\n1,x\n')


def test_damaged_header_of_one_file_fails_its_rows(tmp_path: Path) -> None:
    outcome = read_csv(tmp_path, "a,b\n1,x\n", 'a,"b\n1,x\n2,y\n', "a,b\n3,z\n")
    assert [row["a"] for row in outcome.good] == [1, 3]
    assert sorted(outcome.bad) == [(1, 0), (1, 1)]


def test_too_long_row_fails_alone(tmp_path: Path) -> None:
    long = "x" * (3 << 20)
    for value in (long, f'"{long}"', f'"{long}\n{long}"'):
        content = f"a,b\n1,x\n2,{value}\n3,z\n"
        outcome = read_csv(tmp_path, content, maxRowBytes=1 << 20)
        assert [row["a"] for row in outcome.good] == [1, 3]
        assert all("maxRowBytes (1048576)" in error for error in outcome.bad.values())


def test_open_quote_far_before_the_next_one_is_found(tmp_path: Path) -> None:
    rows = [f"{number},{'y' * 50}" for number in range(50_000)]
    rows[10] = '10,"open'
    rows[40_000] = '40000,"closed"'
    outcome = read_csv(tmp_path, "a,b\n" + "\n".join(rows))
    assert list(outcome.bad) == [(0, 10)]
    assert len(outcome.good) == 49_999


WORDS = ["alpha", "beta, gamma", 'say "hi"', "two\nlines", "", "5 inch", "one\r\ntwo", "#x"]


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32), block=st.sampled_from(BLOCKS))
def test_open_quotes_make_no_wrong_row(
    tmp_path_factory: pytest.TempPathFactory, seed: int, block: int
) -> None:
    content, rows = _with_open_quotes(random.Random(seed))
    types = {f"c{number}": "string" for number in range(len(rows[0]))}
    outcomes = [
        in_blocks(tmp_path_factory.mktemp("csv"), content, size, types=types)
        for size in (1 << 20, block)
    ]
    good = [tuple(row.values()) for row in outcomes[0].good]
    assert set(good) <= {tuple(row) for row in rows if row}
    assert outcomes[0].bad
    for attribute in ("good", "places", "ends", "bad"):
        assert getattr(outcomes[0], attribute) == getattr(outcomes[1], attribute)


def _with_open_quotes(random_: random.Random) -> tuple[str, list[list[str]]]:
    """Return CSV with one to three lines with open quotes, and the rows; empty for these lines."""
    columns, newline = random_.choice([1, 2, 3]), random_.choice(["\n", "\r\n"])
    quoting: Any = random_.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    rows = [
        [f"id{n}", *random_.choices(WORDS, k=columns - 1)] for n in range(random_.randint(4, 30))
    ]
    if columns == 1:
        rows = [[random_.choice(WORDS) or "y"] for _ in rows]
    damaged = random_.sample(range(len(rows)), random_.randint(1, 3))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=newline, quoting=quoting)
    writer.writerow(f"c{number}" for number in range(columns))
    for number, row in enumerate(rows):
        if number in damaged:
            fields = ["open"] * columns
            fields[random_.randrange(columns)] = '"open'
            text.write(",".join(fields) + newline)
            rows[number] = []
        else:
            writer.writerow(row)
    return text.getvalue(), [row or [""] * columns for row in rows]
