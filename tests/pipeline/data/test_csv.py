"""CSV input: rows equal those of pyarrow and Python's csv; unreadable lines are failed rows.

See test_csv_dialects, test_csv_types, test_csv_damage and test_csv_hints for options, types, open
quotes and wrong options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.csv as pac
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.input import csv_records, encoding_check
from batchinference.pipeline.input.readers import csv as reader
from plugins.messages import Messages
from support.inputs.packages import folder_of
from support.inputs.read_files import read_csv, read_files
from support.tiers import examples

DATA = folder_of("sklearn") / "datasets" / "data"


@pytest.mark.parametrize("name", ["iris.csv", "breast_cancer.csv", "wine_data.csv"])
def test_rows_and_types_equal_those_of_pyarrow(name: str) -> None:
    # the first line holds counts and has fewer fields than the others
    names = [f"c{number}" for number in range(len(_fields(DATA / name, -1)))]
    expected = pac.read_csv(
        DATA / name,
        pac.ReadOptions(column_names=names),
        pac.ParseOptions(invalid_row_handler=lambda row: "skip"),
    )
    outcome = read_files("csv", DATA / name, columnNames=names)
    assert outcome.good == expected.to_pylist()
    assert outcome.schema == expected.schema
    wrong = len(_fields(DATA / name, 0)) != len(names)
    assert set(outcome.bad) == ({(0, 0)} if wrong else set())


LINES: dict[str, list[tuple[Any, str]]] = {
    **{"": [], "\n\n\n": [], "a,b\n": [], "a,b": []},
    "a,b\n1,x": [(1, "x")],
    "a,b\r\n1,x\r\n\r\n2,y\r\n": [(1, "x"), (2, "y")],
    "\ufeffa,b\n1,x\n": [(1, "x")],
    "\n\na,b\n\n1,x\n\n": [(1, "x")],
    'a,b\n1,"x,y"\n2,"say ""hi"""\n': [(1, "x,y"), (2, 'say "hi"')],
    'a,b\n1,"two\nlines"\n2,x\n': [(1, "two\nlines"), (2, "x")],
    'a,b\n1,5" disk\n2,x\n': [(1, '5" disk'), (2, "x")],
    "a,b\n 1 ,x \n2\t, y\n": [(1, "x "), (2, " y")],
    "a,b\n,\nNA,NA\n3,x\n": [(None, ""), (None, "NA"), (3, "x")],
}
"""Rows by content: empty files, newlines, byte order mark, quotes, spaces and missing values."""


def test_lines_of_a_file_are_read_csv(tmp_path: Path) -> None:
    found = {content: read_csv(tmp_path, content) for content in LINES}
    rows = {text: [(row["a"], row["b"]) for row in each.good] for text, each in found.items()}
    assert rows == LINES
    assert {text: each.ends for text, each in found.items()} == {
        text: {0: len(expected)} for text, expected in LINES.items()
    }
    assert not any(each.bad for each in found.values())


def test_delimiter_and_column_names_are_options(tmp_path: Path) -> None:
    for delimiter in "\t;| ":
        content = f"a{delimiter}b\n1{delimiter}x,y"
        assert read_csv(tmp_path, content, delimiter=delimiter).good == [{"a": 1, "b": "x,y"}]
    outcome = read_csv(tmp_path, "1,x\n2\n3,z\n", columnNames=["n", "t"])
    assert outcome.good == [{"n": 1, "t": "x"}, {"n": 3, "t": "z"}]
    assert outcome.places == [(0, 0), (0, 2)]


BAD_LINES = {
    b"2": "ValueError: line has 1 field instead of 2: 2",
    b"2,x,y": "ValueError: line has 3 fields instead of 2: 2,x,y",
    b"2,\xff\xfe": "column 'b': its text is not valid in the encoding utf-8",
    b"2,caf\xe9,y": "ValueError: line has 3 fields instead of 2: 2,caf\ufffd,y",
    b"two,x": "column 'a': \"two\" is not int64",
    b"2.5,x": "column 'a': \"2.5\" is not int64",
}


def test_unreadable_line_is_a_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the line is after the sampled bytes, so it does not change the inferred types
    monkeypatch.setattr(reader, "SAMPLE_BYTES", 20)
    for line, error in BAD_LINES.items():
        content = b"a,b\n" + b"1,x\n" * 5 + line + b'\n\n3,"y\nz"\n' + line + b"\n4,z"
        outcome = read_csv(tmp_path, content)
        assert outcome.good[5:] == [{"a": 3, "b": "y\nz"}, {"a": 4, "b": "z"}], line
        assert outcome.places[5:] == [(0, 6), (0, 8)], line
        assert set(outcome.bad) == {(0, 5), (0, 7)}, line
        assert error in outcome.bad[0, 5]
        assert outcome.ends == {0: 9}, line


def test_space_before_a_quote_is_explained(tmp_path: Path) -> None:
    outcome = read_csv(tmp_path, 'a,b\n1, "x, y"\n2, "z"\n')
    assert outcome.good == [{"a": 2, "b": ' "z"'}]
    assert "Remove the space" in outcome.bad[0, 0]


ENCODINGS = ("latin-1", "cp1252", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be", "cp500")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_encodings_give_the_same_rows(tmp_path: Path, encoding: str) -> None:
    for content in ('n,größe,t\n1,1.5,grün\n2,,"zwei\nZeilen: ß"\n', "n,t\r\n1,é", "n,t\n", "\n"):
        expected = read_csv(tmp_path, content)
        found = read_csv(tmp_path, content.encode(encoding), encoding=encoding)
        assert (found.good, found.places, found.ends) == (
            expected.good, expected.places, expected.ends
        )  # fmt: skip
        assert not found.bad
        if found.good:
            assert found.schema == expected.schema


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be"])
def test_blocks_of_other_encodings_may_end_within_a_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 64)
    monkeypatch.setattr(encoding_check, "_BLOCK_BYTES", 7)
    monkeypatch.setattr(reader, "SAMPLE_BYTES", 31)
    content = "n,t\n" + "".join(f"{n},é{n}\n" for n in range(50))
    outcome = read_csv(tmp_path, content.encode(encoding), encoding=encoding)
    assert outcome.good == [{"n": n, "t": f"é{n}"} for n in range(50)]


INVALID = {
    "ascii": (b"a,b\n1,x\n2,\xe9\n3,z\n", [1, 3], {(0, 1)}),
    "cp1252": (b"a,b\n1,x\n2,\x81\n3,z", [1, 3], {(0, 1)}),
    "shift_jis": (b"a,b\n1,x\n2,\x83\n3,z\n", [1, 3], {(0, 1)}),
    "utf-16-le": (
        "a,b\n1,x\n2,\ud800y\n3,z\n".encode("utf-16-le", "surrogatepass"),
        [1, 3],
        {(0, 1)},
    ),
    "utf-16": ("a,b\n1,x\n2,y\n".encode("utf-16")[:-3], [1], {(0, 1)}),
}
"""Files whose second row is invalid: their content, the rows that are read, and the failed rows."""


@pytest.mark.parametrize("encoding", INVALID)
def test_bytes_that_are_invalid_in_an_encoding_fail_their_row(
    tmp_path: Path, encoding: str, messages: Messages
) -> None:
    content, good, bad = INVALID[encoding]
    outcome = read_csv(tmp_path, content, encoding=encoding)
    assert [row["a"] for row in outcome.good] == good
    assert set(outcome.bad) == bad
    messages.check(outcome.bad[0, 1])


def test_invalid_header_fails_the_rows_of_its_file(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "0.csv").write_text("a,b\n0,text\n")
    (tmp_path / "1.csv").write_bytes(b"a,\x81\n1,x\n2,y\n")
    outcome = read_files("csv", tmp_path, encoding="cp1252")
    assert (len(outcome.good), set(outcome.bad)) == (1, {(1, 0), (1, 1)})
    messages.check(outcome.bad[1, 0])


def test_column_without_sampled_values_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1.csv").write_text("n\n1\n")
    (tmp_path / "2.csv").write_text("own,n\n2,3\n")
    outcome = read_files("csv", tmp_path, sampled=1)
    assert outcome.good == [{"n": 1, "own": None}, {"n": 3, "own": "2"}]
    monkeypatch.setattr(reader, "SAMPLE_BYTES", 20)
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 20)
    (tmp_path / "late").mkdir()
    outcome = read_csv(tmp_path / "late", "a,b\n" + "1,\n" * 50 + "2,text\n")
    assert outcome.good[-1] == {"a": 2, "b": "text"}
    assert outcome.bad == {}
    assert {str(table.schema.field("b").type) for table in outcome.tables} == {"string"}


def test_files_share_columns_and_wider_types(tmp_path: Path) -> None:
    for contents, rows in {
        ("n,t\n1,2\n", "n,t\n1.5,x\n"): [(1.0, "2"), (1.5, "x")],
        ("n,t\n1,x\n", "t,n\ny,2\n", "t\nz\n"): [(1, "x"), (2, "y"), (None, "z")],
    }.items():
        for number, content in enumerate(contents):
            (tmp_path / f"{number}.csv").write_text(content)
        outcome = read_files("csv", tmp_path)
        assert outcome.good == [{"n": n, "t": t} for n, t in rows]
        assert outcome.bad == {}


@pytest.mark.parametrize("encoding", ["cp1252", "shift_jis"])
def test_ragged_line_that_is_invalid_in_its_encoding_is_a_failed_row(
    tmp_path: Path, encoding: str
) -> None:
    outcome = read_csv(tmp_path, b"a,b\n1,x\n2,y,\x81\n3,z\n", encoding=encoding)
    assert [row["a"] for row in outcome.good] == [1, 3]
    assert "line has 3 fields instead of 2: 2,y," in outcome.bad[0, 1]


def test_ragged_undecodable_line_does_not_shorten_the_longest_row(tmp_path: Path) -> None:
    lines = [b"a,b", *(b"1," + "\u00e9".encode() * 500_000 for _ in range(3)), b"2,y,\xff"]
    outcome = read_csv(tmp_path, b"\n".join(lines), maxRowBytes=1 << 20)
    assert [(row["a"], len(row["b"])) for row in outcome.good] == [(1, 500_000)] * 3
    assert list(outcome.bad) == [(0, 3)]


HUGE = "x" * 200
"""A value that is longer than a block."""
CUT_LINES = {
    **{'11,"\r\n\r\r\n"': (11, "\r\n\r\r\n"), "12,\r": (12, "")},
    **{"1,x": (1, "x"), '3,"a\nb"': (3, "a\nb"), "7,": (7, ""), "8,caf\u00e9": (8, "caf\u00e9")},
    **{f"13,{HUGE}": (13, HUGE)},
    **dict.fromkeys(
        ["", "2", "4,x,y", "five,z", "6,\udcff", "9,\udcff,x", '10,"\n",x', "14," * 60]
    ),
}
"""Lines and their rows; None for blank and invalid lines."""


@settings(max_examples=examples(60), deadline=None)
@given(texts=st.lists(st.sampled_from(list(CUT_LINES)), max_size=30), block=st.integers(12, 100))
def test_rows_do_not_depend_on_the_block_size(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], block: int
) -> None:
    directory = tmp_path_factory.mktemp("csv")
    (directory / "0.csv").write_text("n,t\n0,text\n")  # fixes the types
    content = "\n".join(["n,t", *texts]).encode(errors="surrogateescape")
    (directory / "1.csv").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "BLOCK_BYTES", block)
        outcome = read_files("csv", directory, sampled=1)
    rows = [CUT_LINES[text] for text in texts if text]
    assert [tuple(row.values()) for row in outcome.good[1:]] == [row for row in rows if row]
    assert outcome.places[1:] == [(1, number) for number, row in enumerate(rows) if row]
    assert set(outcome.bad) == {(1, number) for number, row in enumerate(rows) if not row}
    assert outcome.ends == {0: 1, 1: len(rows)}


def _fields(path: Path, line: int) -> list[str]:
    return path.read_text().splitlines()[line].split(",")
