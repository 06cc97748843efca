"""JSON input, as lines or as one array per file: rows equal those of Python's json."""

from __future__ import annotations

import json
import math
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.json_rows import JsonRows
from batchinference.pipeline.input.readers.json import row_slices
from batchinference.pipeline.input.readers.text_lines import LINE_SAMPLE_BYTES
from support.calls import counted
from support.inputs.read_files import Outcome, open_input, read_files
from support.tiers import examples

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read(tmp_path: Path, content: bytes, **options: Any) -> Outcome:
    return read_files("json", write(tmp_path / "a.json", content), **options)


def read_behind(directory: Path, sample: bytes, content: bytes, **sizes: int) -> Outcome:
    """Read two files. Only the file 0, with `sample`, is inspected for column types."""
    paths = [write(directory / "0.json", sample), write(directory / "1.json", content)]
    return read_files("json", *paths, sampled=1, sizes=sizes)


LINES: dict[bytes, list[Any]] = {
    **{b"": [], b"\n\n \n": [], b'{"a": 1}': [1], b'{"a": 1}\n{"a": 2}\n': [1, 2]},
    **{b'{"a": 1}\r\n\r\n{"a": 2}\r\n': [1, 2], b'\xef\xbb\xbf{"a": 1}\n': [1]},
    **{b'\n{"a": 1}\n\n{"a": null}\n': [1, None], b'{"a": "}null"}': ["}null"]},
    **{'{"a": "é😀\\u00fc\\n"}'.encode(): ["é😀ü\n"], b'{"a": 1}\n{"a": 1.5}\n': [1.0, 1.5]},
    b'{"a": {"b": [true, null]}}\n': [{"b": [True, None]}],
    b'{"a": [\nnull\n]}\n': [[None]],
}
ARRAYS: dict[bytes, list[Any]] = {
    **{b"[]": [], b' [{"a": 1},\n {"a": 2}] ': [1, 2], b'{"a": 1}': [1]},
    '\ufeff[{"a": 1}]'.encode(): [1],
    '[{"a": "ü"}]'.encode("utf-16"): ["ü"],
}


def test_values_of_a_file_are_read(tmp_path: Path) -> None:
    for cases in (LINES, ARRAYS):
        by_content = {content: read(tmp_path, content, lines=cases is LINES) for content in cases}
        assert {text: [row["a"] for row in each.good] for text, each in by_content.items()} == cases
        assert not any(each.bad for each in by_content.values())
        assert {text: each.ends for text, each in by_content.items()} == {
            text: {0: len(expected)} for text, expected in cases.items()
        }


BAD_LINES = [
    *(b"no JSON", b'{"a": 2', b'{"a": 2.5}{', b"2", b"[2]", b'"a"', b'{"a": 2, "a": 3}'),
    *(b'{"a": 2, "b": "\xff"}', b'{"a": 2, "b": "\\ud800"}', b'{"a":' + b"[" * 100_000),
]


def test_unreadable_line_is_a_failed_row(tmp_path: Path) -> None:
    for line in BAD_LINES:
        outcome = read(tmp_path, b'{"a": 0}\n{"a": 1}\n' + line + b'\n\n{"a": 3}\n')
        assert [row["a"] for row in outcome.good] == [0, 1, 3], line[:20]
        assert outcome.order == [(0, 0), (0, 1), (0, 3)], line[:20]
        assert (set(outcome.bad), outcome.ends) == ({(0, 2)}, {0: 4}), line[:20]


def test_unreadable_array_elements_are_failed_rows(tmp_path: Path) -> None:
    for element in (2, [2], "a", None, True, {"a": 1, "b": "\ud800"}):
        outcome = read(tmp_path, json.dumps([{"a": 0}, element, {"a": 2}]).encode(), lines=False)
        assert [row["a"] for row in outcome.good] == [0, 2], element
        assert set(outcome.bad) == {(0, 1)}, element


def test_file_without_an_array_is_one_failed_row(tmp_path: Path) -> None:
    write(tmp_path / "a.json", b'[{"a": 1}]')
    for content in (b"", b'[{"a": 1},', b"no JSON", b"[" * 100_000, b'[{"a": "\xff"}]'):
        write(tmp_path / "b.json", content)
        outcome = read_files("json", tmp_path, lines=False)
        assert outcome.good == [{"a": 1}], content[:20]
        assert (set(outcome.bad), outcome.ends) == ({(1, 0)}, {0: 1, 1: 1}), content[:20]


FILES: dict[str, tuple[bytes, bytes, list[dict[str, Any]], dict[str, str]]] = {
    "wider types": (
        b'{"n": 1, "s": null, "l": []}',
        b'{"n": 1.5, "s": "text", "l": [1]}',
        [{"n": 1.0, "s": None, "l": []}, {"n": 1.5, "s": "text", "l": [1]}],
        {"n": "double", "s": "string", "l": "list<item: int64>"},
    ),
    "unsigned integers": (
        *(b'{"a": 1}', b'{"a": 9223372036854775808}'),
        *([{"a": 1}, {"a": 2**63}], {"a": "uint64"}),
    ),
    "broken line in a sample": (
        *(b'{"n": 1}\nbroken\n', b'{"n": 1.5}', [{"n": 1.0}, {"n": 1.5}], {"n": "double"}),
    ),
    "several types": (
        *(b'{"n": 1.50}', b'{"n": "text"}\n{"n": [1, {"a":2}]}\n'),
        *([{"n": "1.50"}, {"n": "text"}, {"n": '[1, {"a":2}]'}], {"n": "string"}),
    ),
    "other columns": (
        *(b'{"a": 1}', b'{"b": "x"}\n{}\n'),
        [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}],
        {"a": "int64", "b": "string"},
    ),
}
"""The contents of two files, their good rows and the types of columns."""


def test_files_share_the_inferred_types(tmp_path: Path) -> None:
    for case, (one, other, rows, types) in FILES.items():
        write(tmp_path / "a.json", one)
        write(tmp_path / "b.json", other)
        outcome = read_files("json", tmp_path)
        assert outcome.good == rows, case
        fields = [each for table in outcome.tables for each in table.schema if each.name in types]
        assert {(each.name, str(each.type)) for each in fields} == set(types.items()), case


INTEGERS: list[tuple[list[Any], str]] = [
    ([1, 2**63, 2**64 - 1], "uint64"),
    ([2**63 - 1, -(2**63)], "int64"),
    ([[1], [2**63]], "list<item: uint64>"),
    ([{"b": 1}, {"b": 2**63}], "struct<b: uint64>"),
    ([1.5, 1e20, 2, 2**53], "double"),
]
TOO_LARGE = [[-1, 2**63], [1, 2**64], [0, -(2**63) - 1], [0.5, 2**53 + 1], [1.5, 10**400]]
"""Numbers that no type of numbers holds: the column is text."""


def lines(values: list[Any]) -> bytes:
    return "".join(json.dumps({"a": value}) + "\n" for value in values).encode()


def test_integers_are_never_rounded(tmp_path: Path) -> None:
    for values, kind in INTEGERS:
        outcome = read(tmp_path, lines(values))
        assert [row["a"] for row in outcome.good] == values, values
        assert str(outcome.schema.field("a").type) == kind, values
    for values in TOO_LARGE:
        assert [row["a"] for row in read(tmp_path, lines(values)).good] == list(map(str, values))


LATE: dict[str, list[tuple[Any, Any]]] = {
    "integer that would be rounded": [(0.5, 2**53 + 1), ([0.5], [2**53 + 1])],
    "integer of a nested field that would be rounded": [({"b": 0.5}, {"b": -(2**53) - 1})],
    "integer beyond the range": [(1, 2**63)],
    "other type": [(1, "A12"), (1, 1.5), (True, 0), ([1], 1), ({"b": 1}, {"b": "x"})],
}


@pytest.mark.parametrize("case", LATE)
def test_late_value_that_does_not_fit_names_its_column_and_fix(case: str, tmp_path: Path) -> None:
    for early, late in LATE[case]:
        outcome = read_behind(tmp_path, lines([early]), lines([early, late, early]))
        assert [row["a"] for row in outcome.good] == [early] * 3, late
        ((item, message),) = outcome.bad.items()
        assert item == (1, 1)
        for part in ("column 'a'", "first rows", "read.options.types: {a: "):
            assert part in message, late


def test_rows_behind_the_sample_are_read_or_fail(tmp_path: Path) -> None:
    more = b'{"a": 2, "new": "value"}\n{"a": "x"}\n{"a": 3}\n'
    outcome = read_behind(tmp_path, b'{"a": 1}\n', more)
    assert outcome.good[1:] == [{"a": 2, "new": "value"}, {"a": 3, "new": None}]
    assert set(outcome.bad) == {(1, 1)}


NO_OBJECTS: dict[bytes, list[int]] = {
    **{b"null": [0], b"\r\n \tnull \n": [0], b"null\nnull\n": [0, 1], b'null\n{"a": 1}\n': [0]},
    **{b"null\nbroken\nnull\n": [0, 1, 2], b'broken\nnull\n{"a": 1}\n': [0, 1]},
    **{b'null\n5\ntrue\n"x"\n[]\nnull': [0, 1, 2, 3, 4, 5], b"nulls\n": [0], b"nul\n": [0]},
    **{b'{"a": 1}\n null \n{}\n-1.5\n{"a": null}\n': [1, 3], b'{"a": 1} null\n{}\n': [0]},
    **{b'{"a": "}null"}\n{"a": "\\nnull"}\n': []},
}
"""Content, and the row numbers of its failed rows."""


@pytest.mark.parametrize("before", [0, 9])
@pytest.mark.parametrize("types", [b'{"b": 0}\n', b"{}\n"])
def test_line_that_is_no_object_is_a_failed_row(tmp_path: Path, types: bytes, before: int) -> None:
    for content, bad in NO_OBJECTS.items():
        outcome = read_behind(tmp_path, types, b'{"b": 1}\n' * before + content, chunk_bytes=10)
        assert sorted(outcome.bad) == [(1, before + row) for row in bad], content
        good = [(1, row) for row in range(before, outcome.ends[1]) if row - before not in bad]
        assert outcome.order[1 + before :] == good, content


def test_null_after_a_byte_order_mark_is_a_failed_row(tmp_path: Path) -> None:
    assert set(read(tmp_path, b"\xef\xbb\xbfnull\n{}\n").bad) == {(0, 0)}


def test_error_names_the_kind_of_a_line_that_is_no_object(tmp_path: Path) -> None:
    kinds = {b"null": "null", b"true": "boolean", b'"x"': "text", b"1": "number", b"[1]": "array"}
    for line, kind in kinds.items():
        assert f" {kind}" in read(tmp_path, b"{}\n" + line + b"\n").bad[0, 1], line


SEVERAL_LINES: dict[bytes, list[dict[str, Any]]] = {
    b'{\n  "a": [\n    {"b": 1},\n    {"b": 2}\n  ]\n}\n': [{"a": [{"b": 1}, {"b": 2}]}],
    b'{\n  "a": 1\n}\n{\n  "a": 2\n}': [{"a": 1}, {"a": 2}],
    b'{\r\n  "a": 1,\r\n  "b": "x"\r\n}\r\n\r\n {"a": 2}': [
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
    ],
    b'{"a":\n"} { \\n"}\n{"a": ""}\n': [{"a": "} { \n"}, {"a": ""}],
    b'{"a": 1,\n"b": [\n]}': [{"a": 1, "b": []}],
}


@pytest.mark.parametrize("chunk", [10, 4 << 20])
def test_objects_may_span_lines_and_chunks(tmp_path: Path, chunk: int) -> None:
    for content, rows in SEVERAL_LINES.items():
        outcome = read(tmp_path, b"\n" + content, sizes={"chunk_bytes": chunk})
        assert (outcome.good, outcome.bad) == (rows, {}), content


def test_slices_end_after_rows() -> None:
    rows = [b'{"a": 1, "b": "%b"}\n' % (b"x" * size) for size in (0, 3, 40, 3)]
    assert list(row_slices(b"".join(rows), 16)) == rows


def test_line_end_within_a_text_is_a_failed_row(tmp_path: Path) -> None:
    for end in (b"\n", b"\r\n"):
        content = b'{\n"a": "x' + end + b'y"\n}\n{\n"a": "z"\n}\n'
        outcome = read(tmp_path, content)
        assert (outcome.good, list(outcome.bad)) == ([{"a": "z"}], [(0, 0)]), end


ONE_DOCUMENT = [
    b'[\n  {"a": 1},\n  {"a": 2}\n]\n',
    b'[{"a": 1},\n{"a": 2}]',
    b'[{\n"a": 1\n}]',
    b'{\n  "a": 1, // a comment\n  "b": {"a": 2}\n}\n',
    '{"a": 1}\n{"a": 2}\n'.encode("utf-16"),
]


def test_file_that_is_one_unreadable_document_is_one_failed_row(tmp_path: Path) -> None:
    for content in ONE_DOCUMENT:
        outcome = read(tmp_path, content)
        assert (outcome.good, set(outcome.bad)) == ([], {(0, 0)}), content


def test_damaged_first_line_damages_no_other(tmp_path: Path) -> None:
    for line in (b'{"a": 0,', b'{"a": {', b'{"a": 0, "b', b"{"):
        outcome = read(tmp_path, line + b'\n{"a": 1}\n{"a": 2}\n')
        assert [row["a"] for row in outcome.good] == [1, 2], line
        assert set(outcome.bad) == {(0, 0)}, line


def test_array_read_as_lines_names_the_option(tmp_path: Path) -> None:
    for content in (b'[{"a": 1}, {"a": 2}]', b'[\n{"a": 1},\n{"a": 2}\n]'):
        assert "read.options.lines: false" in read(tmp_path, content).bad[0, 0]


def test_number_with_a_huge_exponent_fails_its_row(tmp_path: Path) -> None:
    content = b'{"a": 1.5}\n{"a": 1e9999999999999999999}\n{"a": 2.5}\n'
    outcome = read(tmp_path, content, types={"a": "float64"})
    assert ([row["a"] for row in outcome.good], set(outcome.bad)) == ([1.5, 2.5], {(0, 1)})


DECLARED: dict[str, list[tuple[str, Any]]] = {
    "json": [('{"b": 1.50, "a": ["\\u00e9"]}', '{"b": 1.50, "a": ["\\u00e9"]}'), ('"x"', '"x"')],
    "string": [("007", None), ("1e400", "1e400"), ('"x"', "x"), ("null", None), ("[1]", "[1]")],
    "decimal<22, 19>": [("0.1234567890123456789", Decimal("0.1234567890123456789"))],
    "decimal<4, 2>": [("12.5", Decimal("12.50")), ('"12"', Decimal(12)), ("1000", None),
                      ("1e3", None), ("1.005", None), ("true", None), ("1e-77", None),
                      ("1e-99999999", None)],
    "list<struct<d: decimal<4, 2>>>": [('[{"d": 1000}]', None), ('[{"d": 1e-77}]', None),
                                       ('[{"d": 1e-99999999}]', None)],
    "date": [('"2024-02-29"', date(2024, 2, 29)), ('"2024-02-30"', None), ("19000", None)],
    "timestamp": [('"2024-01-01T00:00:00Z"', None)],
    "timestamp<UTC>": [('"2024-01-01T00:00:00"', None)],
    "list<struct<when: date>>": [('[{"when": "2024-02-29"}]', [{"when": date(2024, 2, 29)}])],
    "float32": [("1.5", 1.5), ("1e39", None), ("16777217", None)],
    "float64": [("1.7e308", 1.7e308), ("1.5e309", None), (f"1{'0' * 400}", None)],
    "int8": [("127", 127), ("128", None), ("1.0", None)],
    "struct<content: json>": [('{"content": [1]}', {"content": "[1]"})],
    "struct<when: date>": [('{"when": "2024-02-29", "x": 1.50}',
                            {"when": date(2024, 2, 29), "x": "1.50"})],
}  # fmt: skip
"""The JSON of values, and the values as they are read: None for null and for failed rows."""


@pytest.mark.parametrize("declared", DECLARED)
def test_declared_type_is_used_and_no_value_is_changed(declared: str, tmp_path: Path) -> None:
    for text, expected in DECLARED[declared]:
        content = f'{{"x": 1, "a": {text}, "y": [{{"z": 2}}]}}\n'.encode()
        for lines_, document in ((True, content), (False, b"[" + content + b"]")):
            outcome = read(tmp_path, document, lines=lines_, types={"a": declared})
            assert [row["a"] for row in outcome.good] in ([expected], []), text
            assert bool(outcome.good) == (expected is not None or text == "null"), text
            assert all("column 'a'" in each for each in outcome.bad.values() if text != "007")


def test_row_with_half_a_surrogate_pair_in_a_name_is_a_failed_row(tmp_path: Path) -> None:
    for row in (b'{"\\ud800": 1}', b'{"a": {"\\udfff": 1}}'):
        outcome = read(tmp_path, b'{"a": 1}\n' + row + b'\n{"a": 2}\n')
        assert (outcome.good, list(outcome.bad)) == ([{"a": 1}, {"a": 2}], [(0, 1)])


def test_number_is_shown_as_it_is_written(tmp_path: Path) -> None:
    message = read(tmp_path, b'{"a": 1.0}\n', types={"a": "int64"}).bad[0, 0]
    assert "column 'a': 1.0 is not int64" in message


def test_declared_column_that_no_row_has_is_null(tmp_path: Path) -> None:
    outcome = read(tmp_path, b'{"a": 1}\n', types={"b": "list<date>"})
    assert outcome.good == [{"a": 1, "b": None}]
    assert outcome.schema.field("b").type == pa.list_(pa.date32())


def test_declared_column_in_another_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"types\.ID.*'id'"):
        read(tmp_path, b'{"id": 1}\n', types={"ID": "string"})


def test_values_of_a_file_that_is_an_array_are_not_changed(tmp_path: Path) -> None:
    content = b'[{"a": 1.50,\r\n "b": "x\\ny"}, {"a": [1,\n2], "b": null}]'
    outcome = read(tmp_path, content, lines=False)
    assert outcome.good == [{"a": "1.50", "b": "x\ny"}, {"a": "[1, 2]", "b": None}]
    twice = read(tmp_path, b'[{"a": 1}, {"a": 1, "a": 2}]', lines=False)
    assert (twice.good, set(twice.bad)) == ([{"a": 1}], {(0, 1)})


def test_fields_that_the_sample_lacks_are_texts(tmp_path: Path) -> None:
    rows = [b'{"null": null, "none": [], "old": {}}\n']
    rows += [b'{"null": {"x": 1.50}, "none": [1], "new": 2, "old": {"new": [1.50]}}\n']
    rows += [b'{"null": "a", "none": ["b"], "new": "2024-01-01", "old": {"new": "x"}}\n']
    rows += [b'{"null": [1, "a"], "new": [1, [2]], "old": {"new": [1, {}], "more": [1, "b"]}}\n']
    outcome = read_behind(tmp_path, rows[0], b"".join(rows[1:]))
    assert not outcome.bad
    assert outcome.good[1:] == [
        {"null": '{"x": 1.50}', "none": ["1"], "new": "2", "old": {"new": "[1.50]", "more": None}},
        {"null": "a", "none": ["b"], "new": "2024-01-01", "old": {"new": "x", "more": None}},
        {"null": '[1, "a"]', "none": None, "new": "[1, [2]]",
         "old": {"new": "[1, {}]", "more": '[1, "b"]'}},
    ]  # fmt: skip


def test_lines_longer_than_a_sample_have_types(tmp_path: Path) -> None:
    long = b"x" * LINE_SAMPLE_BYTES
    outcome = read(tmp_path, b'{"a": 1, "b": "%b"}\n{"a": 2}\n' % long)
    assert [row["a"] for row in outcome.good] == [1, 2]


def test_fields_that_differ_by_case_are_two_columns(tmp_path: Path) -> None:
    assert read(tmp_path, b'{"a": 1, "A": "x"}\n').good == [{"a": 1, "A": "x"}]


def test_empty_objects_are_rows_without_columns(tmp_path: Path) -> None:
    outcome = read(tmp_path, b"{}\n{}\n")
    assert (outcome.order, outcome.bad) == ([(0, 0), (0, 1)], {})


def test_nan_of_pythons_json_is_read(tmp_path: Path) -> None:
    for lines_ in (True, False):
        (row,) = read(tmp_path, b'{"a": NaN}', lines=lines_).good
        assert math.isnan(row["a"])


def test_bad_line_is_isolated_by_halving(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'{"a": 1}\n' * 1000 + b"bad\n" + b'{"a": 1}\n' * 3095)
    opened = open_input("json", path)
    with counted(JsonRows, "parse") as calls:
        assert set(opened.read().bad) == {(0, 1000)}
    assert calls.call_count == 1 + 2 * 12


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries({"n": st.none() | NUMBERS, "s": st.none() | st.text(max_size=5)})
        | st.sampled_from(["", "broken", '{"n": "text"}']),
        max_size=12,
    ),
    chunk=st.integers(3, 100),
)
def test_rows_do_not_depend_on_the_chunk_size(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any] | str], chunk: int
) -> None:
    first = b'{"n": 0.5, "s": "a letter"}'  # fixes the types
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    content = "\n".join(texts).encode()
    outcome = read_behind(tmp_path_factory.mktemp("json"), first, content, chunk_bytes=chunk)
    numbered = list(enumerate(row for row in rows if row != ""))
    assert outcome.good[1:] == [row for _, row in numbered if isinstance(row, dict)]
    assert outcome.order[1:] == [(1, n) for n, row in numbered if isinstance(row, dict)]
    assert set(outcome.bad) == {(1, n) for n, row in numbered if isinstance(row, str)}
    assert outcome.ends == {0: 1, 1: len(numbered)}


@pytest.mark.parametrize(("opening", "closing"), ["[]", ('{"a":', "}"), ('{"a":[', "]}")])
@pytest.mark.parametrize(("levels", "failed"), [(90, 0), (350, 0), (5000, 1), (100_000, 1)])
def test_deep_values_are_read_as_text_or_fail_their_row(
    tmp_path: Path, opening: str, closing: str, levels: int, failed: int
) -> None:
    line = f'{{"x": {opening * levels}1{closing * levels}}}\n'
    outcome = read(tmp_path, f'{{"x": null}}\n{line}'.encode())
    assert (len(outcome.order), len(outcome.bad)) == (2 - failed, failed)
