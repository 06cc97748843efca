"""CSV: the rows that pyarrow and Python's csv read, and one bad row for each that they cannot."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pac
import pytest
import sklearn.datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.readers import csv as reader
from batchinference.pipeline.readers import lines
from support.reading import Outcome, read_files

DATA = Path(sklearn.datasets.__file__).parent / "data"
FIELDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]) | st.just("\n"))


def read(tmp_path: Path, content: bytes | str, **options: Any) -> Outcome:
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_files("csv", path, **options)


@pytest.mark.parametrize("name", ["iris.csv", "breast_cancer.csv", "wine_data.csv"])
def test_rows_and_types_are_those_of_pyarrow(name: str) -> None:
    # a first line with counts: fewer fields than the others
    names = [f"c{number}" for number in range(len(_last_line(DATA / name)))]
    expected = pac.read_csv(
        DATA / name,
        pac.ReadOptions(column_names=names),
        pac.ParseOptions(invalid_row_handler=lambda row: "skip"),
    )
    outcome = read_files("csv", DATA / name, column_names=names)
    assert outcome.good == expected.to_pylist()
    assert outcome.schema == expected.schema
    wrong = len(_first_line(DATA / name)) != len(names)
    assert set(outcome.bad) == ({(0, 0)} if wrong else set())


def test_values_are_those_of_pythons_csv() -> None:
    path = DATA / "linnerud_exercise.csv"
    with path.open(newline="") as file:
        expected = [
            {name: int(value) for name, value in row.items()}
            for row in csv.DictReader(file, delimiter=" ")
        ]
    assert read_files("csv", path, delimiter=" ").good == expected


def test_a_gzipped_file_is_unpacked() -> None:
    path = DATA / "digits.csv.gz"
    names = [f"p{number}" for number in range(64)] + ["label"]
    outcome = read_files("csv", path, column_names=names)
    with gzip.open(path, "rt") as file:
        expected = [[float(value) for value in row] for row in csv.reader(file)]
    assert [list(row.values()) for row in outcome.good] == expected
    assert outcome.ends == {0: 1797}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        ("\n\n\n", []),
        ("a,b\n", []),
        ("a,b", []),
        ("a,b\n1,x", [(1, "x")]),
        ("a,b\r\n1,x\r\n\r\n2,y\r\n", [(1, "x"), (2, "y")]),
        ("\ufeffa,b\n1,x\n", [(1, "x")]),
        ("\n\na,b\n\n1,x\n\n", [(1, "x")]),
        ('a,b\n1,"x,y"\n2,"say ""hi"""\n', [(1, "x,y"), (2, 'say "hi"')]),
        ('a,b\n1,"two\nlines"\n2,x\n', [(1, "two\nlines"), (2, "x")]),
        ('a,b\n1,5" disk\n2,x\n', [(1, '5" disk'), (2, "x")]),
        ("a,b\n 1 ,x \n2\t, y\n", [(1, "x "), (2, " y")]),
        ("a,b\n,\nNA,NA\n3,x\n", [(None, ""), (None, "NA"), (3, "x")]),
    ],
    ids=[
        *("empty", "blank lines only", "header only", "header without newline"),
        *("no newline at the end", "CRLF and a blank line", "byte order mark"),
        *("blank lines anywhere", "quotes", "newline in quotes", "a quote within a field"),
        *("spaces around numbers", "missing values"),
    ],
)
def test_lines_of_a_file(tmp_path: Path, content: str, expected: list[tuple[Any, str]]) -> None:
    outcome = read(tmp_path, content)
    assert [(row["a"], row["b"]) for row in outcome.good] == expected
    assert outcome.bad == {}
    assert outcome.ends == {0: len(expected)}


def test_types_are_learned(tmp_path: Path) -> None:
    outcome = read(
        tmp_path,
        "i,f,b,d,t,s,e\n1,1.5,true,2020-01-02,2020-01-02 03:04:05,text,\n-2,,false,,,,\n",
    )
    assert {field.name: str(field.type) for field in outcome.schema} == {
        **{"i": "int64", "f": "double", "b": "bool", "d": "date32[day]"},
        **{"t": "timestamp[s]", "s": "string", "e": "string"},
    }
    day, moment = dt.date(2020, 1, 2), dt.datetime.fromisoformat("2020-01-02 03:04:05")
    assert [tuple(row.values()) for row in outcome.good] == [
        (1, 1.5, True, day, moment, "text", ""),
        (-2, None, False, None, None, "", ""),
    ]


@pytest.mark.parametrize("delimiter", ["\t", ";", "|", " "], ids=["tab", ";", "|", "space"])
def test_the_delimiter_can_be_chosen(tmp_path: Path, delimiter: str) -> None:
    content = "\n".join(delimiter.join(row) for row in (["a", "b"], ["1", "x,y"]))
    assert read(tmp_path, content, delimiter=delimiter).good == [{"a": 1, "b": "x,y"}]


def test_names_can_be_given_to_files_without_a_header(tmp_path: Path) -> None:
    outcome = read(tmp_path, "1,x\n2\n3,z\n", column_names=["n", "t"])
    assert outcome.good == [{"n": 1, "t": "x"}, {"n": 3, "t": "z"}]
    assert outcome.places == [(0, 0), (0, 2)]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"2", "ValueError: line has 1 fields instead of 2: 2"),
        (b"2,x,y", "ValueError: line has 3 fields instead of 2: 2,x,y"),
        (b"2,\xff\xfe", "UTF8"),
        (b"two,x", "'two' as a scalar of type int64"),
        (b"2.5,x", "'2.5' as a scalar of type int64"),
    ],
    ids=["too few fields", "too many fields", "undecodable bytes", "no number", "no whole number"],
)
def test_a_line_that_cannot_be_read_goes_to_the_errors_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, error: str
) -> None:
    # so that the line is beyond it and does not change what is learned
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 20)
    count = 5
    content = b"a,b\n" + b"1,x\n" * count + line + b'\n\n3,"y\nz"\n' + line + b"\n4,z"
    outcome = read(tmp_path, content)
    assert outcome.good[count:] == [{"a": 3, "b": "y\nz"}, {"a": 4, "b": "z"}]
    assert outcome.places[count:] == [(0, count + 1), (0, count + 3)]
    assert set(outcome.bad) == {(0, count), (0, count + 2)}
    assert error in outcome.bad[0, count]
    assert outcome.ends == {0: count + 4}


def test_undecodable_bytes_in_a_sample_cost_their_row_alone(tmp_path: Path) -> None:
    outcome = read(tmp_path, b"a,b\n1,x\n2,\xff\n3,z\n")
    assert outcome.good == [{"a": 1, "b": "x"}, {"a": 3, "b": "z"}]
    assert outcome.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_a_column_that_begins_empty_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 20)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 20)
    outcome = read(tmp_path, "a,b\n" + "1,\n" * 50 + "2,text\n")
    assert outcome.good[-1] == {"a": 2, "b": "text"}
    assert outcome.bad == {}
    assert {str(table.schema.field("b").type) for table in outcome.tables[:-1]} == {"string"}


def test_the_wider_of_two_types_holds_for_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t\n1,2\n")
    (tmp_path / "b.csv").write_text("n,t\n1.5,x\n")
    outcome = read_files("csv", tmp_path)
    assert outcome.good == [{"n": 1.0, "t": "2"}, {"n": 1.5, "t": "x"}]
    assert outcome.bad == {}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "", " 9223372036854775808", "18446744073709551615"], "uint64"),
        (["-1", "9223372036854775808"], "string"),
        (["1", "18446744073709551616"], "string"),
        (["9223372036854775808", "1.5", "1e20"], "double"),
        (["9223372036854775807", "-1"], "int64"),
    ],
    ids=str,
)
def test_a_whole_number_is_never_rounded(tmp_path: Path, values: list[str], kind: str) -> None:
    outcome = read(tmp_path, "n,t\n" + "".join(f"{value},x\n" for value in values))
    assert str(outcome.schema.field("n").type) == kind
    number = {"string": str, "double": float}.get(kind, int)
    assert [row["n"] for row in outcome.good] == [
        number(value) if value else None for value in values
    ]
    assert outcome.bad == {}


def test_columns_are_told_by_their_names_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t\n1,x\n")
    (tmp_path / "b.csv").write_text("t,n\ny,2\n")
    (tmp_path / "c.csv").write_text("t\nz\n")
    assert read_files("csv", tmp_path).good == [
        {"n": 1, "t": "x"},
        {"n": 2, "t": "y"},
        {"n": None, "t": "z"},
    ]


def test_a_column_of_a_file_that_was_no_sample_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("own,n\n2,3\n")
    outcome = read_files("csv", tmp_path, sampled=1)
    assert outcome.good == [{"n": 1, "own": None}, {"n": 3, "own": "2"}]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"a\.csv has two columns 'a'"):
        read(tmp_path, "a,a\n1,2\n")


def test_one_huge_line_is_one_row(tmp_path: Path) -> None:
    huge = "x" * (20 * reader.BLOCK_BYTES)
    outcome = read(tmp_path, f"a,b\n1,x\nbad\n2,{huge}\n3\n4,z\n")
    assert outcome.good == [{"a": 1, "b": "x"}, {"a": 2, "b": huge}, {"a": 4, "b": "z"}]
    assert outcome.places == [(0, 0), (0, 2), (0, 4)]
    assert set(outcome.bad) == {(0, 1), (0, 3)}
    assert outcome.ends == {0: 5}


@pytest.mark.parametrize("block", [20, reader.BLOCK_BYTES])
@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        ('a,b\n1,x\n2,"y\n3,z\n', 1, 2),
        ('a,b\n1,x\n2,"y', 1, 1),
        ('a,b\n1,x\n2,"y""\n\n3,z\n4,z', 1, 3),
        ('a,b\n1,x\n2\n"3\n4,z\n', 1, 3),
        ('a,b\n1,x\n2,\xe9,"y\n3,z', 1, 2),
        ('a\n1\n"2\n3\n', 1, 2),
        ('a\n1\n"2"\n3\n', 3, 0),
        ('a,b\n1,x\n2,"y"', 2, 0),
        ("a,b\n1,x\r", 1, 0),
    ],
    ids=[
        *("in the last field", "in the last line", "with quotes behind it", "in a first field"),
        *("in a ragged line that is no UTF-8", "in the only field"),
        *("closed in the only field", "closed at the end", "no quote"),
    ],
)
def test_a_quote_that_never_ends_costs_its_row_and_the_lines_behind_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    good: int,
    bad: int,
    block: int,
) -> None:
    (tmp_path / "0.csv").write_text("a,b\n0,text\n")
    (tmp_path / "1.csv").write_bytes(content.encode("latin-1"))
    monkeypatch.setattr(reader, "BLOCK_BYTES", block)
    outcome = read_files("csv", tmp_path, sampled=1)
    assert outcome.places[1:] == [(1, number) for number in range(good)]
    assert sorted(outcome.bad) == [(1, number) for number in range(good, good + bad)]
    if bad:
        assert "a quote is opened but not closed" in outcome.bad[1, good + bad - 1]


def test_a_ragged_line_with_undecodable_bytes_costs_its_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BLOCK_BYTES", 1000)
    lines_ = [b"%d,gr\xc3\xbcn" % number for number in range(1000)]
    lines_[500:502] = [b"1,caf\xe9,extra", b"1,caf\xe9"]
    outcome = read(tmp_path, b"\xef\xbb\xbfn,t\xc3\xa4g\n" + b"\n".join(lines_))
    expected = [{"n": number, "täg": "grün"} for number in range(1000)]
    assert outcome.good == expected[:500] + expected[502:]
    assert set(outcome.bad) == {(0, 500), (0, 501)}
    assert outcome.ends == {0: 1000}


def test_rows_below_a_header_that_is_no_utf8_are_bad(tmp_path: Path) -> None:
    outcome = read(tmp_path, b"n,t\xe4g\n1,x\n2\n3,z\n")
    assert set(outcome.bad) == {(0, 0), (0, 1), (0, 2)}


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), FIELDS, FIELDS), max_size=20),
    newline=st.sampled_from(["\n", "\r\n"]),
    delimiter=st.sampled_from(",;\t"),
)
def test_what_pythons_csv_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, str, str]],
    newline: str,
    delimiter: str,
) -> None:
    # so that the types do not depend on what is drawn
    written = [(1, "text", "text"), *rows]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline)
    writer.writerows([("n", "a", "b"), *written])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(text.getvalue().encode())
    outcome = read_files("csv", path, delimiter=delimiter)
    assert [tuple(row.values()) for row in outcome.good] == written
    assert outcome.places == [(0, number) for number in range(len(written))]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(
        st.sampled_from(
            [
                *("1,x", "", "2", '3,"a\nb"', "4,x,y", "five,z", "6,\udcff", "7,", "8,caf\u00e9"),
                *("\udcff", "9,\udce9,extra", '10,"\udcff\n",\u00e9'),
            ]
        ),
        max_size=30,
    ),
    block=st.integers(12, 100),
)
def test_rows_do_not_depend_on_how_a_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], block: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    # the first file says what the types are
    (path.parent / "0.csv").write_text("n,t\n0,text\n")
    path.write_bytes("\n".join(["n,t", *texts]).encode(errors="surrogateescape"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BLOCK_BYTES", block)
        outcome = read_files("csv", path.parent, sampled=1)
    expected = {
        "1,x": (1, "x"),
        '3,"a\nb"': (3, "a\nb"),
        "7,": (7, ""),
        "8,caf\u00e9": (8, "caf\u00e9"),
    }
    numbered = list(enumerate(text for text in texts if text))
    good = [(n, expected[text]) for n, text in numbered if text in expected]
    assert [tuple(row.values()) for row in outcome.good[1:]] == [row for _, row in good]
    assert outcome.places[1:] == [(1, number) for number, _ in good]
    assert set(outcome.bad) == {(1, n) for n, text in numbered if text not in expected}
    assert outcome.ends == {0: 1, 1: len(numbered)}


def _first_line(path: Path) -> list[str]:
    return path.read_text().splitlines()[0].split(",")


def _last_line(path: Path) -> list[str]:
    return path.read_text().splitlines()[-1].split(",")
