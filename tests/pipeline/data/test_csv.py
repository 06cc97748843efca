"""CSV input: unreadable lines are failed rows, and files that need other options are refused before
the job starts.

See test_csv_dialects and test_csv_types for options, open quotes and types."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers.csv import SAMPLE_BYTES
from plugins.messages import Messages
from support.inputs.read_files import open_input, read_csv, read_files
from support.tiers import examples

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
    by_content = {content: read_csv(tmp_path, content) for content in LINES}
    rows = {text: [(row["a"], row["b"]) for row in each.good] for text, each in by_content.items()}
    assert rows == LINES
    assert {text: each.ends for text, each in by_content.items()} == {
        text: {0: len(expected)} for text, expected in LINES.items()
    }
    assert not any(each.bad for each in by_content.values())


def test_delimiter_and_column_names_are_options(tmp_path: Path) -> None:
    for delimiter in "\t;| ":
        content = f"a{delimiter}b\n1{delimiter}x,y"
        assert read_csv(tmp_path, content, delimiter=delimiter).good == [{"a": 1, "b": "x,y"}]
    outcome = read_csv(tmp_path, "1,x\n2\n3,z\n", columnNames=["n", "t"])
    assert outcome.good == [{"n": 1, "t": "x"}, {"n": 3, "t": "z"}]
    assert outcome.order == [(0, 0), (0, 2)]


BAD_LINES = {
    b"2": "ValueError: line has 1 field instead of 2: 2",
    b"2,x,y": "ValueError: line has 3 fields instead of 2: 2,x,y",
    b"2,\xff\xfe": "column 'b': its text is not valid in the encoding utf-8",
    b"2,caf\xe9,y": "ValueError: line has 3 fields instead of 2: 2,caf\ufffd,y",
    b"two,x": "column 'a': \"two\" is not int64",
    b"2.5,x": "column 'a': \"2.5\" is not int64",
}


def test_unreadable_line_is_a_failed_row(tmp_path: Path) -> None:
    for line, error in BAD_LINES.items():
        content = b"a,b\n1,x\n" + line + b'\n\n3,"y\nz"\n' + line + b"\n4,z"
        outcome = read_csv(tmp_path, "a,b\n1,x\n", content, sampled=1)
        assert outcome.good[2:] == [{"a": 3, "b": "y\nz"}, {"a": 4, "b": "z"}], line
        assert outcome.order[2:] == [(1, 2), (1, 4)], line
        assert set(outcome.bad) == {(1, 1), (1, 3)}, line
        assert error in outcome.bad[1, 1]
        assert outcome.ends == {0: 1, 1: 5}, line


def test_space_before_a_quote_is_explained(tmp_path: Path) -> None:
    outcome = read_csv(tmp_path, 'a,b\n1, "x, y"\n2, "z"\n')
    assert outcome.good == [{"a": 2, "b": ' "z"'}]
    assert "Remove the space" in outcome.bad[0, 0]


ENCODINGS = ("latin-1", "cp1252", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be", "cp500")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_encodings_give_the_same_rows(tmp_path: Path, encoding: str) -> None:
    for content in ('n,größe,t\n1,1.5,grün\n2,,"zwei\nZeilen: ß"\n', "n,t\r\n1,é", "n,t\n", "\n"):
        expected = read_csv(tmp_path, content)
        rows = read_csv(tmp_path, content.encode(encoding), encoding=encoding)
        assert (rows.good, rows.order, rows.ends) == (
            expected.good, expected.order, expected.ends
        )  # fmt: skip
        assert not rows.bad
        if rows.good:
            assert rows.schema == expected.schema


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be"])
def test_samples_and_blocks_of_other_encodings_may_end_within_a_character(
    tmp_path: Path, encoding: str
) -> None:
    text = "é" * (SAMPLE_BYTES // 90)
    content = "n,t\n" + "".join(f"{n},{text}{n}\n" for n in range(50))
    sizes = {"block_bytes": (1 << 18) + 1}
    outcome = read_csv(tmp_path, content.encode(encoding), encoding=encoding, sizes=sizes)
    assert outcome.good == [{"n": n, "t": f"{text}{n}"} for n in range(50)]


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


def test_column_without_sampled_values_is_text(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("n\n1\n")
    (tmp_path / "2.csv").write_text("own,n\n2,3\n")
    outcome = read_files("csv", tmp_path, sampled=1)
    assert outcome.good == [{"n": 1, "own": None}, {"n": 3, "own": "2"}]
    late = "a,b\n" + "1,\n" * 50 + "2,text\n"
    (tmp_path / "late").mkdir()
    sizes = {"block_bytes": 20}
    outcome = read_csv(tmp_path / "late", "a,b\n1,\n", late, sampled=1, sizes=sizes)
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
    outcome = read_files("csv", directory, sampled=1, sizes={"block_bytes": block})
    rows = [CUT_LINES[text] for text in texts if text]
    assert [tuple(row.values()) for row in outcome.good[1:]] == [row for row in rows if row]
    assert outcome.order[1:] == [(1, number) for number, row in enumerate(rows) if row]
    assert set(outcome.bad) == {(1, number) for number, row in enumerate(rows) if not row}
    assert outcome.ends == {0: 1, 1: len(rows)}


ENCODED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "UTF-16": ("id,text\n1,ä\n".encode("utf-16"), {}, "utf-16"),
    "UTF-16 without a mark": ("id,text\n1,ä\n".encode("utf-16-le"), {}, "utf-16-le"),
    "big-endian": ("id,text\n1,ä\n".encode("utf-16-be"), {}, "utf-16-be"),
    "UTF-32": ("id,text\n1,ä\n".encode("utf-32"), {}, "utf-32"),
    "cp1252": ("id,text\n1,café\n2,grün\n".encode("cp1252"), {}, "cp1252"),
    "UTF-8 as cp1252": ("id,text\n1,café\n2,grün\n".encode(), {"encoding": "cp1252"}, "utf-8"),
    "another code page": ("id,text\n1,kęs\n2,dęby\n".encode("cp1250"), {}, "cp1250"),
    "UTF-8 as UTF-16": (b"id,text\n1,a\n", {"encoding": "utf-16"}, "utf-8"),
    "UTF-16 that lacks the mark": ("id,text\n1,ä\n".encode("utf-16-be"), {"encoding": "utf-16"},
                                   "utf-16-be"),
}  # fmt: skip
"""Content, options, and the encoding to set."""


def test_header_in_another_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"Set read\.options\.encoding"):
        read_csv(tmp_path, "id,größe\n1,a\n".encode("cp1252"))


@pytest.mark.parametrize("case", ENCODED)
@pytest.mark.parametrize("format_", ["csv", "text"])
def test_file_in_another_encoding_is_refused(
    tmp_path: Path, case: str, format_: str, messages: Messages
) -> None:
    content, options, encoding = ENCODED[case]
    file = tmp_path / ("a.csv" if format_ == "csv" else "a.txt")
    file.write_bytes(content)
    with messages.raises(BadInput):
        read_files(format_, file, **options)
    assert read_files(format_, file, encoding=encoding).good


def test_unsampled_file_without_a_mark_is_a_failed_row(tmp_path: Path) -> None:
    for format_, row in (("csv", {"a": 1}), ("text", {"text": "a"})):
        (tmp_path / "a").write_bytes("a\n1\n".encode("utf-16"))
        (tmp_path / "b").write_bytes("a\n1\n".encode("utf-16-be"))
        result = open_input(format_, tmp_path / "a", tmp_path / "b", sampled=1, encoding="utf-16")
        outcome = result.read()
        assert (outcome.good[0], list(outcome.bad)) == (row, [(1, 0)])
        assert "utf-16-be" in outcome.bad[1, 0]


PACKED = {
    "gzip": (gzip.compress(b"a,b\n1,2\n"), r"end with \.gz"),
    "bzip2": (bz2.compress(b"a,b\n1,2\n"), r"end with \.bz2"),
    "xz": (lzma.compress(b"a,b\n1,2\n"), "Unpack"),
    "zip": (b"PK\3\4\x14\0\0\0\n", "Unpack.*workbook"),
    "Parquet": (b"PAR1\x15\4\n", "format parquet"),
}
"""Content that is no text, and the fix."""


@pytest.mark.parametrize("case", PACKED)
@pytest.mark.parametrize(
    ("format_", "options"),
    [
        *((name, {"encoding": each}) for name in ("csv", "text") for each in ("utf-8", "latin-1")),
        *(("json", {"lines": lines}) for lines in (True, False)),
    ],
)
def test_packed_file_is_no_text(
    tmp_path: Path, case: str, format_: str, options: dict[str, Any]
) -> None:
    content, fix = PACKED[case]
    good, packed = tmp_path / "a", tmp_path / "b"
    good.write_bytes(b'[{"a": 1}]' if options.get("lines") is False else b'{"a": 1}\n')
    packed.write_bytes(content)
    outcome = open_input(format_, good, packed, sampled=1, **options).read()
    assert list(outcome.bad) == [(1, 0)]
    assert re.search(fix, outcome.bad[1, 0])
    if format_ != "json":
        with pytest.raises(BadInput, match=rf"read\.paths: {packed} is .*{fix}"):
            read_files(format_, packed, **options)


ACCEPTED: dict[str, tuple[bytes, dict[str, Any], int]] = {
    "texts with semicolons": (b"text\na; b\nc\nd; e; f\n", {}, 3),
    "a text with one tab": (b"text\na\tb\nc\td\n", {}, 2),
    "an explicit comma": (b"a;b\nc;d\n", {"delimiter": ","}, 1),
    "a header without rows": (b"id;text\n", {}, 0),
    "paths of Windows": (b'id,text\n1,"C:\\dir\\"\n2,"D:\\"\n', {}, 2),
    "a line of another length": (b"id,text\n1,a\n2\n3,c,d\n", {}, 1),
    "one line of another length": (b"id,text\n1\n", {}, 0),
    "one damaged character": (b"id,text\n1,a\n2,\xff\n3,c\n", {}, 2),
    "mostly UTF-8": ("1,ä\n2,ö\n3,ü\n".encode() + b"4,caf\xe9\n", {"columnNames": ["a", "b"]}, 3),
    "NUL characters only": (b"id\n" + b"\0" * 100, {}, 1),
    "NUL characters": (b"id,text\n1,a\0b\n", {}, 1),
    "cp1252": ("id,text\n1,Ã¼ber é\n".encode("cp1252"), {"encoding": "cp1252"}, 1),
}
"""Content and options that leave doubt, and the number of good rows."""


@pytest.mark.parametrize("case", ACCEPTED)
def test_doubtful_file_is_read(tmp_path: Path, case: str) -> None:
    content, options, rows = ACCEPTED[case]
    assert len(read_csv(tmp_path, content, **options).good) == rows


def test_conflict_with_the_separator_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"read\.options\.delimiter"):
        read_csv(tmp_path, "sep=;\nid;text\n1;a\n", delimiter=",")


def test_manifest_is_refused_without_options_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("uri;id\nx;1\ny;2\n")
    with pytest.raises(BadInput, match=r"read\.options\.column: .*no column 'uri'.* commas"):
        read_files("manifest", tmp_path / "a.csv")
    for content in ("uri,id\nx,1\n".encode("utf-16"), b"uri,\xff\nx,1\n", b"uri,n,n\nx,1,2\n"):
        (tmp_path / "a.csv").write_bytes(content)
        with pytest.raises(BadInput) as refused:
            read_files("manifest", tmp_path / "a.csv")
        assert "read.options" not in str(refused.value)
