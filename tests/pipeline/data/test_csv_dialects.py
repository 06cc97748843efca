"""Options of CSV: the rows have the values that another program has written. A damaged quote fails
its line, and no row consists of the rest of the file."""

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
from batchinference.pipeline.row_warnings import ROW_WARNINGS
from batchinference.spec.warnings import WarningName
from plugins.messages import Messages
from support.inputs.read_files import Outcome, open_input, read_csv, read_files
from support.tiers import examples

AB = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]
SEPARATED = {
    '\ufeff"SEP=\t"\r\nid\ttext\r\n1\ta\r\n2\tb': {},
    "sep=;\rid;text\r1;a\r2;b\r": {"delimiter": ";"},
    "sep=;\n1;a\n2;b\n": {"columnNames": ["id", "text"]},
    "sep=;\nmade today\nid;text\n1;a\n2;b\n": {"skipLines": 2},
}


@pytest.mark.parametrize("content", SEPARATED, ids=range(len(SEPARATED)))
def test_first_line_names_the_delimiter(tmp_path: Path, content: str) -> None:
    assert read_csv(tmp_path, content, **SEPARATED[content]).good == AB


def test_separator_line_of_an_unsampled_file_must_agree_with_the_option(tmp_path: Path) -> None:
    contents = ["id,text\n1,a\n", "sep=;\nid;text\n1;a\n"]
    outcome = read_csv(tmp_path, *contents, sampled=1, delimiter=",")
    assert outcome.good == AB[:1]
    assert "delimiter" in outcome.bad[1, 0]


def test_tsv_files_are_separated_by_tabs(tmp_path: Path) -> None:
    for name in ("a.tsv", "b.TSV"):
        (tmp_path / name).write_text("id\ttext\n1\ta\n2\tb\n")
    assert read_files("csv", tmp_path).good == AB * 2


BACKSLASH = {"escape": "\\"}
MYSQL = {**BACKSLASH, "quote": "", "delimiter": "\t"}
DIALECTS: dict[str, tuple[str, dict[str, Any], list[tuple[Any, ...]]]] = {
    "escaped quotes": ('i,t\n1,"say \\"hi\\", please"\n', BACKSLASH, [(1, 'say "hi", please')]),
    "escaped and doubled": ('i,t\n1,"\\"a\\" ""b"""\n', BACKSLASH, [(1, '"a" "b"')]),
    "escaped escape": ('i,t\n1,"C:\\\\"\n2,x\n', BACKSLASH, [(1, "C:\\"), (2, "x")]),
    "escaped without quotes": ("i,t\n1,a\\, b\n", BACKSLASH, [(1, "a, b")]),
    "escaped line end": ("i,t\n1,a\\\nb\n2,c\\\r\nd\n", BACKSLASH, [(1, "a\nb"), (2, "c\r\nd")]),
    "only special characters": ('i,t\n1,"C:\\new \\"x\\""\n', BACKSLASH, [(1, 'C:\\new "x"')]),
    "null": ('i,t\n1,\\N\n\\N,"a\\Nb"\n2,\\Nc\n', BACKSLASH,
             [(1, None), (None, "a\\Nb"), (2, "\\Nc")]),
    "another escape": ("i,t\n1,'it^'s'\n", {"escape": "^", "quote": "'"}, [(1, "it's")]),
    "no quotes": ('i\tt\n1\t"The" film\n2\t"x\n', {"quote": "", "delimiter": "\t"},
                  [(1, '"The" film'), (2, '"x')]),
    "sequences of MySQL": ("i\tt\n1\ta\\tb\\nc\\\\n\n\\N\t\\\td\\q\n2\t\\N\n", MYSQL,
                           [(1, "a\tb\nc\\n"), (None, "\tdq"), (2, None)]),
    "single quotes": ("i,t\n1,'a, b'\n2,'it''s'\n3,say \"hi\"\n", {"quote": "'"},
                      [(1, "a, b"), (2, "it's"), (3, 'say "hi"')]),
    "decimal commas": ("i;t\n1,5;a\n-0,25;b\n3;c\n;d\n", {"decimal": ",", "delimiter": ";"},
                       [(1.5, "a"), (-0.25, "b"), (3.0, "c"), (None, "d")]),
    "comments": ('# made by\n\n#"\ni,t\n1,#a\n# "x\n2,"b\n#c"\n3, # d\n#\n', {"comment": "#"},
                 [(1, "#a"), (2, "b\n#c"), (3, " # d")]),
    "lines before the header": ('Report "2024\r\n\r\ni,t\r\n1,a\r\n', {"skipLines": 2}, [(1, "a")]),
    "null values": ("i,t\n1,-\n-,x\n2,\n", {"nullValues": ["-", ""]},
                    [(1, None), (None, "x"), (2, None)]),
    "spaces around quotes": ('i,t\n1,"a, b" \n', {}, [(1, "a, b ")]),
}  # fmt: skip


@pytest.mark.parametrize("case", DIALECTS)
def test_dialect_is_read(tmp_path: Path, case: str) -> None:
    content, options, rows = DIALECTS[case]
    outcome = read_csv(tmp_path, content, **options)
    assert [tuple(row.values()) for row in outcome.good] == rows
    assert outcome.bad == {}


def test_file_of_which_all_lines_are_skipped_is_a_failed_row(tmp_path: Path) -> None:
    outcome = read_csv(tmp_path, "i,t\n1,a\n", skipLines=9)
    assert (outcome.good, set(outcome.bad)) == ([], {(0, 0)})
    assert "skipLines" in outcome.bad[0, 0]


def test_column_without_a_name_is_named_after_its_position(tmp_path: Path) -> None:
    outcome = read_csv(tmp_path, ",text,\n1,a,\n")
    assert outcome.good == [{"column_1": 1, "text": "a", "column_3": ""}]


def test_lines_that_options_leave_out_are_counted(tmp_path: Path) -> None:
    content = "made by\ni,t\n# x\n# y\n1,a\n2,b\n# z\n3,c\n# end\n"
    assert _skipped(read_csv(tmp_path, content, skipLines=1, comment="#")) == {0: 3, 2: 2}
    assert _skipped(read_csv(tmp_path, "# made by\nsep=,\ni,t\n1,a\n", comment="#")) == {0: 1}


def test_lines_left_out_of_a_file_without_good_rows_are_counted(tmp_path: Path) -> None:
    for content in ("# a\nn,t\nx,x\n# b\ny,y\n", '# a\n# b\nn,t\n1,"x\n'):
        outcome = read_csv(tmp_path, content, comment="#", types={"n": "int64"})
        assert outcome.good == []
        assert sum(_skipped(outcome).values()) == 2


def test_control_characters_of_hive_are_delimiters(tmp_path: Path) -> None:
    content = "i\x01t\n1\x01a,b\n"
    with pytest.raises(BadInput, match=r"delimiter.*\\x01"):
        read_csv(tmp_path, content)
    assert read_csv(tmp_path, content, delimiter="\x01").good == [{"i": 1, "t": "a,b"}]


def test_comments_are_found_at_the_border_of_blocks(tmp_path: Path) -> None:
    lines = [f'{n},"a\n# {n}"\n# "no value {n}\n' for n in range(40)]
    for block in (16, 31, 64):
        outcome = in_blocks(tmp_path, "i,t\n" + "".join(lines), block, comment="#")
        assert [row["t"] for row in outcome.good] == [f"a\n# {n}" for n in range(40)]


def _skipped(outcome: Outcome) -> dict[int, int]:
    """Return the number of lines that were left out before rows, by row number."""
    tables = [batch.warnings for batch in outcome.batches if batch.warnings is not None]
    items = [item for table in tables for item in table.select(ROW_WARNINGS.names).to_pylist()]
    assert {item["name"] for item in items} <= {WarningName.LINES_SKIPPED.value}
    return {item["id"]: item["amount"] for item in items}


FIELDS = st.text(st.sampled_from("ab ,;\"'#\\^\n\té"), max_size=6) | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]) | st.just("\n")
)
STYLES: list[dict[str, Any]] = [
    {"doublequote": True},
    {"doublequote": True, "quotechar": "'"},
    {"doublequote": False, "escapechar": "\\"},
    {"doublequote": False, "escapechar": "^", "quotechar": "'"},
    {"quoting": csv.QUOTE_ALL},
    {"quoting": csv.QUOTE_NONE, "escapechar": "^", "quotechar": None},
]
OPTIONS = {"quotechar": "quote", "escapechar": "escape"}


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=12),
    style=st.sampled_from(STYLES),
    delimiter=st.sampled_from(",;\t"),
    newline=st.sampled_from(["\n", "\r\n"]),
    block=st.sampled_from([1 << 20, 40]),
)
def test_files_of_pythons_csv_in_other_dialects_are_read(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    style: dict[str, Any],
    delimiter: str,
    newline: str,
    block: int,
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline, **style)
    for number, row in enumerate([("text", "text"), *rows]):
        writer.writerow([f"id{number}", *row])
    options = {OPTIONS[name]: value or "" for name, value in style.items() if name in OPTIONS}
    outcome = in_blocks(
        tmp_path_factory.mktemp("csv"), text.getvalue(), block, delimiter=delimiter,
        columnNames=["id", "a", "b"], types={"a": "string", "b": "string"}, **options,
    )  # fmt: skip
    assert outcome.bad == {}
    assert [(row["a"], row["b"]) for row in outcome.good[1:]] == rows
    assert outcome.order == [(0, number) for number in range(len(rows) + 1)]


def test_declared_columns_need_no_sample(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n")
    assert open_input("csv", tmp_path, types={"id": "int64"}).given.columns() == ["id", "text"]


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
    encoded = content.encode(errors="surrogateescape")
    return read_csv(tmp_path, encoded, sizes={"block_bytes": block}, **options)


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_quote_fails_its_line(tmp_path: Path, case: str) -> None:
    content, good, bad, error = DAMAGED[case]
    for block in BLOCKS:
        outcome = in_blocks(tmp_path, content, block)
        assert outcome.order == [(0, row) for row in good], block
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
    values = {long: True, f'"{long}"': True, f'"{long}\n{long}"': True, f'"{long}': False}
    for value, newlines in values.items():
        content = f"a,b\n1,x\n2,{value}\n3,z\n"
        outcome = read_csv(tmp_path, content, newlinesInValues=newlines, maxRowBytes=1 << 20)
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
    for attribute in ("good", "order", "ends", "bad"):
        assert getattr(outcomes[0], attribute) == getattr(outcomes[1], attribute)


def _with_open_quotes(random_: random.Random) -> tuple[str, list[list[str]]]:
    """Return CSV in which some lines have open quotes, and its rows (empty for these lines)."""
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
