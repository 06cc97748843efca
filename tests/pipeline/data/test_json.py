"""JSON: one object a line or one array a file, as pyarrow and Python's json read it."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as paj
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from batchinference.pipeline.readers import json as reader
from batchinference.pipeline.readers import lines
from support.reading import Outcome, open_input, read_files

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read(tmp_path: Path, content: bytes, **options: Any) -> Outcome:
    return read_files("json", write(tmp_path / "a.json", content), **options)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 digits of 8 x 8 pixels, with their labels, as JSON Lines."""
    data = load_digits()
    path = tmp_path_factory.mktemp("digits") / "digits.jsonl"
    rows = zip(data.images[:200].tolist(), data.target[:200].tolist(), strict=True)
    path.write_text("".join(json.dumps({"pixels": p, "label": t}) + "\n" for p, t in rows))
    return path


def test_rows_and_types_are_those_of_pyarrow(digits: Path) -> None:
    expected = paj.read_json(digits)
    outcome = read_files("json", digits)
    assert outcome.good == expected.to_pylist()
    assert outcome.schema == expected.schema
    assert outcome.places == [(0, number) for number in range(200)]
    assert outcome.ends == {0: 200}


def test_values_are_those_of_pythons_json(digits: Path) -> None:
    expected = [json.loads(line) for line in digits.read_text().splitlines()]
    assert read_files("json", digits).good == expected


def test_an_array_of_objects_gives_the_same_rows_as_lines(digits: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in digits.read_text().splitlines()]
    (tmp_path / "digits.json").write_text(json.dumps(rows, indent=2))
    lines_, array = read_files("json", digits), read_files("json", tmp_path, lines=False)
    assert array.good == lines_.good
    assert array.places == lines_.places
    assert array.schema == lines_.schema


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n\n \n", []),
        (b'{"a": 1}', [1]),
        (b'{"a": 1}\n{"a": 2}\n', [1, 2]),
        (b'{"a": 1}\r\n\r\n{"a": 2}\r\n', [1, 2]),
        (b'\xef\xbb\xbf{"a": 1}\n', [1]),
        (b'\n{"a": 1}\n\n{"a": null}\n', [1, None]),
        ('{"a": "é😀\\u00fc\\n"}'.encode(), ["é😀ü\n"]),
        (b'{"a": 1}\n{"a": 1.5}\n', [1.0, 1.5]),
        (b'{"a": {"b": [true, null]}}\n', [{"b": [True, None]}]),
    ],
    ids=[
        *("empty", "blank lines only", "no newline at the end", "lines", "CRLF and a blank line"),
        *("byte order mark", "blank lines between", "beyond ASCII", "whole and other numbers"),
        "nested",
    ],
)
def test_lines_of_a_file(tmp_path: Path, content: bytes, expected: list[Any]) -> None:
    outcome = read(tmp_path, content)
    assert [row["a"] for row in outcome.good] == expected
    assert outcome.bad == {}
    assert outcome.ends == {0: len(expected)}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[]", []),
        (b' [{"a": 1},\n {"a": 2}] ', [1, 2]),
        (b'{"a": 1}', [1]),
        ('\ufeff[{"a": 1}]'.encode(), [1]),
        ('[{"a": "ü"}]'.encode("utf-16"), ["ü"]),
    ],
    ids=["empty array", "array", "one object", "byte order mark", "UTF-16"],
)
def test_an_array_of_a_file(tmp_path: Path, content: bytes, expected: list[Any]) -> None:
    outcome = read(tmp_path, content, lines=False)
    assert [row["a"] for row in outcome.good] == expected
    assert outcome.ends == {0: len(expected)}


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b'{"a": 2',
        b'{"a": "text"}',
        b'{"a": [2]}',
        b'{"a": 2.5}{',
        b"2",
        b"[2]",
        b'"a"',
        b'{"a": 2, "a": 3}',
        b'{"a": 2, "b": "\xff"}',
        b'{"a": 2, "b": "\\ud800"}',
        b'{"a":' + b"[" * 100_000,
    ],
    ids=[
        *("no JSON", "cut off", "text for a number", "list for a number", "something behind it"),
        *("a number", "a list", "a text", "a key twice", "no UTF-8", "half a surrogate"),
        "endlessly nested",
    ],
)
def test_a_line_that_cannot_be_read_goes_to_the_errors(tmp_path: Path, line: bytes) -> None:
    outcome = read(tmp_path, b'{"a": 0}\n{"a": 1}\n' + line + b'\n\n{"a": 3}\n')
    assert [row["a"] for row in outcome.good] == [0, 1, 3]
    assert outcome.places == [(0, 0), (0, 1), (0, 3)]
    assert set(outcome.bad) == {(0, 2)}
    assert outcome.ends == {0: 4}


@pytest.mark.parametrize("element", [2, [2], "a", {"a": "\ud800"}, {"a": "text"}], ids=repr)
def test_an_element_of_an_array_that_cannot_be_read_goes_to_the_errors(
    tmp_path: Path, element: Any
) -> None:
    rows = [{"a": 0}, element, {"a": 2}]
    outcome = read(tmp_path, json.dumps(rows).encode(), lines=False)
    assert [row["a"] for row in outcome.good] == [0, 2]
    assert set(outcome.bad) == {(0, 1)}


@pytest.mark.parametrize(
    "content",
    [b"", b'[{"a": 1},', b"no JSON", b"[" * 100_000, b'[{"a": "\xff"}]'],
    ids=["empty", "cut off", "no JSON", "endlessly nested", "no UTF-8"],
)
def test_a_file_that_is_no_array_is_one_bad_row(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "a.json", b'[{"a": 1}]')
    write(tmp_path / "b.json", content)
    outcome = read_files("json", tmp_path, lines=False)
    assert [row["a"] for row in outcome.good] == [1]
    assert set(outcome.bad) == {(1, 0)}
    assert outcome.ends == {0: 1, 1: 1}


def test_types_are_learned_from_all_samples(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'{"n": 1, "s": null, "l": []}\n')
    write(tmp_path / "b.json", b'{"n": 1.5, "s": "text", "l": [1]}\n')
    outcome = read_files("json", tmp_path)
    assert [row["n"] for row in outcome.good] == [1.0, 1.5]
    kinds = {field.name: str(field.type) for field in outcome.schema}
    assert kinds == {"n": "double", "s": "string", "l": "list<item: int64>"}


@pytest.mark.parametrize(
    ("values", "kind", "bad"),
    [
        ([1, 2**63, 2**64 - 1], "uint64", []),
        ([2**63 - 1, -(2**63)], "int64", []),
        ([-1, 2**63], "int64", [1]),
        ([1, 2**64], "uint64", [1]),
        ([0, -(2**63) - 1], "int64", [1]),
        ([[1], [2**63]], "list<item: int64>", [1]),
        ([1.5, 1e20, 2], "double", []),
    ],
    ids=str,
)
def test_a_whole_number_is_never_rounded(
    tmp_path: Path, values: list[Any], kind: str, bad: list[int]
) -> None:
    rows = "".join(json.dumps({"a": value}) + "\n" for value in values)
    outcome = read(tmp_path, rows.encode())
    kept = [value for place, value in enumerate(values) if place not in bad]
    assert [row["a"] for row in outcome.good] == kept
    assert str(outcome.schema.field("a").type) == kind
    assert [row for _, row in outcome.bad] == bad


def test_numbers_that_only_one_file_needs_64_bits_for_are_so_in_all(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'{"a": 1}\n')
    write(tmp_path / "b.json", b'{"a": 9223372036854775808}\n')
    outcome = read_files("json", tmp_path)
    assert [row["a"] for row in outcome.good] == [1, 2**63]
    assert {str(table.schema.field("a").type) for table in outcome.tables[::2]} == {"uint64"}


def test_a_broken_line_among_the_samples_costs_no_types(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'{"n": 1}\nbroken\n')
    write(tmp_path / "b.json", b'{"n": 1.5}\n')
    outcome = read_files("json", tmp_path)
    assert outcome.schema == pa.schema([("n", pa.float64())])
    assert [row["n"] for row in outcome.good] == [1.0, 1.5]


def test_of_two_types_that_do_not_agree_the_first_holds(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'{"n": 1}\n')
    write(tmp_path / "b.json", b'{"n": "text"}\n{"n": 2}\n')
    outcome = read_files("json", tmp_path)
    assert [row["n"] for row in outcome.good] == [1, 2]
    assert set(outcome.bad) == {(1, 0)}


def test_a_column_of_dates_and_other_texts_is_text(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'{"d": "2020-01-01"}\n')
    write(tmp_path / "b.json", b'{"d": "unknown"}\n')
    outcome = read_files("json", tmp_path)
    assert [row["d"] for row in outcome.good] == ["2020-01-01", "unknown"]


def test_a_column_that_the_samples_lack_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 20)
    outcome = read(tmp_path, b'{"a": 1}\n' * 9 + b'{"a": 2, "new": "value"}\n')
    assert outcome.good[-1] == {"a": 2, "new": "value"}
    assert outcome.bad == {}


def test_a_value_that_does_not_fit_the_samples_goes_to_the_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 20)
    outcome = read(tmp_path, b'{"a": 1}\n' * 9 + b'{"a": "x"}\n{"a": 3}\n')
    assert set(outcome.bad) == {(0, 9)}
    assert outcome.good[-1] == {"a": 3}


def test_files_with_other_columns_have_null_in_those_they_lack(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'{"a": 1}\n')
    write(tmp_path / "b.json", b'{"b": "x"}\n{}\n')
    outcome = read_files("json", tmp_path)
    assert outcome.good == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}]


def test_null_is_a_row_without_values(tmp_path: Path) -> None:
    assert [row["a"] for row in read(tmp_path, b'{"a": 1}\nnull\n').good] == [1, None]


@pytest.mark.parametrize("before", [0, 9], ids=["alone", "behind the first block"])
@pytest.mark.parametrize("learned", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize(
    ("content", "bad"),
    [
        (b"null", []),
        (b"\r\n \tnull \n", []),
        (b"null\nnull\n", []),
        (b'null\n{"a": 1}\n', []),
        (b"null\nbroken\nnull\n", [1]),
        (b'broken\nnull\n{"a": 1}\n', [0]),
        (b'null\n5\ntrue\n"x"\n[]\nnull', [1, 2, 3, 4]),
        (b"nulls\n", [0]),
        (b"nul\n", [0]),
    ],
    ids=[
        *("one", "with white space", "two", "before an object", "around a bad line"),
        *("behind a bad line", "around other values", "not quite", "cut off"),
    ],
)
def test_null_in_front_of_what_is_parsed_is_a_row_without_values(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    bad: list[int],
    learned: bool,
    before: int,
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 10)
    first = write(tmp_path / "0.json", b'{"a": 0}\n' if learned else b"{}\n")
    second = write(tmp_path / "1.json", b'{"a": 1}\n' * before + content)
    outcome = read_files("json", first, second, sampled=1)
    numbers = range(before, outcome.ends[1])
    assert sorted(outcome.bad) == [(1, before + number) for number in bad]
    good = [(1, number) for number in numbers if number - before not in bad]
    assert outcome.places[1 + before :] == good


def test_null_behind_a_byte_order_mark_within_a_file_is_a_row() -> None:
    assert reader.parse(b"\xef\xbb\xbfnull\n", reader.NO_SCHEMA).num_rows == 1


@pytest.mark.parametrize("content", [b'[{"a": 1}, {"a": 2}]', b'[\n{"a": 1},\n{"a": 2}\n]'])
def test_an_array_that_is_read_as_lines_is_told_how_to_be_read(
    tmp_path: Path, content: bytes
) -> None:
    assert "read.options.lines: false" in read(tmp_path, content).bad[0, 0]


def test_null_alone_can_be_a_sample(tmp_path: Path) -> None:
    outcome = read(tmp_path, b"null\n")
    assert outcome.places == [(0, 0)]
    assert outcome.bad == {}


def test_objects_without_any_field_are_rows(tmp_path: Path) -> None:
    outcome = read(tmp_path, b"{}\n{}\n")
    assert outcome.places == [(0, 0), (0, 1)]


def test_not_a_number_is_read_as_python_writes_it(tmp_path: Path) -> None:
    for lines_ in (True, False):
        (row,) = read(tmp_path, b'{"a": NaN}', lines=lines_).good
        assert math.isnan(row["a"])


def test_one_huge_line_is_one_row(tmp_path: Path) -> None:
    huge = "x" * (2 * lines.CHUNK_BYTES)
    content = "".join(json.dumps({"a": text}) + "\n" for text in ("before", huge, "after"))
    assert [row["a"] for row in read(tmp_path, content.encode()).good] == ["before", huge, "after"]


def test_a_bad_line_among_many_is_found_by_halving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, calls = reader.parse, []

    def counted(chunk: bytes, schema: pa.Schema) -> pa.Table:
        calls.append(len(chunk))
        return parse(chunk, schema)

    monkeypatch.setattr(reader, "parse", counted)
    path = write(tmp_path / "a.json", b'{"a": 1}\n' * 1000 + b"bad\n" + b'{"a": 1}\n' * 3095)
    opened = open_input("json", path)
    calls.clear()
    assert set(opened.read().bad) == {(0, 1000)}
    assert len(calls) == 1 + 2 * 12


def test_a_gzipped_file_is_unpacked(tmp_path: Path) -> None:
    for lines_, content in ((True, b'{"a": 1}\n{"a": 2}\n'), (False, b'[{"a": 1}, {"a": 2}]')):
        path = write(tmp_path / "a.json.gz", gzip.compress(content))
        outcome = read_files("json", path, lines=lines_)
        assert [row["a"] for row in outcome.good] == [1, 2]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries({"n": st.none() | NUMBERS, "s": st.none() | st.text(max_size=5)})
        | st.sampled_from(["", "broken", '{"n": "text"}']),
        max_size=12,
    ),
    chunk=st.integers(3, 100),
)
def test_rows_do_not_depend_on_how_a_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any] | str], chunk: int
) -> None:
    # the first line says what the types are
    written = [{"n": 0.5, "s": "a letter"}, *rows]
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    texts = [row if isinstance(row, str) else json.dumps(row) for row in written]
    path.write_text("\n".join(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        outcome = read_files("json", path)
    numbered = list(enumerate(row for row in written if row != ""))
    assert outcome.good == [row for _, row in numbered if isinstance(row, dict)]
    assert outcome.places == [(0, n) for n, row in numbered if isinstance(row, dict)]
    assert set(outcome.bad) == {(0, n) for n, row in numbered if isinstance(row, str)}
    assert outcome.ends == {0: len(numbered)}
