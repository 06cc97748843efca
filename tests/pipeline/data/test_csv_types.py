"""Types of CSV columns: they change no value, and a value that does not fit fails only its row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from support.inputs.read_files import Outcome, read_csv
from support.tiers import examples

TEXTS = {
    "leading zeros": ["00501", "02134"],
    "one leading zero": ["1", "00", "2"],
    "negative leading zeros": ["-01", "5"],
    "zeros before a fraction": ["007.5", "1.5"],
    "telephone numbers": ["+4915112345678", "+441234567"],
    "one telephone number": ["+49123", "5"],
    "hexadecimal numbers": ["0x1F", "0x2"],
    "underscores": ["1_000", "2"],
    "part numbers": ["12E3", "4e10", "5"],
    "24 digits": ["123456789012345678901234", "1"],
    "beyond int64 and negative": ["-1", "9223372036854775808"],
    "beyond uint64": ["1", "18446744073709551616"],
    "integers beside a fraction": ["9007199254740993", "0.5"],
    "prices": ["12345678901234567.89", "0.10"],
    "more digits than a float": ["0.1234567890123456789", "1.5"],
    "too large for a float": ["1.5e+400", "1.5"],
    "too small for a float": ["1.5e-400", "1.5"],
    "exponents of many digits": ["1.5e-9999999999999999999", "1.5"],
    "truth values and numbers": ["true", "0"],
    "decimal comma": ["1,5", "2"],
    "thousands": ["1,234", "2"],
    "no such day": ["2024-02-30", "2024-02-01"],
    "other dates": ["31.12.2024", "01.01.2025"],
    "time of day": ["12:30", "01:15:00"],
    "times with and without a zone": ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05"],
    "something missing": ["2024-01-01", "n/a"],
    "a number and a sign": ["5", "-"],
}
"""Values of a column that is text."""
DAY, UTC = dt.date(2024, 1, 2), dt.UTC
TYPED: dict[str, tuple[list[str], str, list[Any]]] = {
    "int64": (["1", "", "-9223372036854775808", " 7 "], "int64", [1, None, -(2**63), 7]),
    "zero": (["0", "-0", "10"], "int64", [0, 0, 10]),
    "days without dashes": (["20240102", "20240103"], "int64", [20240102, 20240103]),
    "uint64": (["1", "", " 9223372036854775808", "18446744073709551615"], "uint64",
               [1, None, 2**63, 2**64 - 1]),
    "float64": (["0.10", ".5", "5.", "1e-05", "-inf", "NaN", "+1.5", "NA"], "double",
                [0.1, 0.5, 5.0, 1e-05, -float("inf"), None, 1.5, None]),
    "floats that a program printed": (["0.30000000000000004", "0.10000000000000001", "1e+22"],
                                      "double", [0.30000000000000004, 0.1, 1e22]),
    "exact integers": (["9223372036854775808", "1.5", "1e20"], "double", [2.0**63, 1.5, 1e20]),
    "bool": (["true", "False", "", "TRUE"], "bool", [True, False, None, True]),
    "date": (["2024-01-02", "null"], "date32[day]", [DAY, None]),
    "timestamp": (["2024-01-02 03:04:05", "2024-01-02"], "timestamp[us]",
                  list(map(dt.datetime.fromisoformat, ("2024-01-02 03:04:05", "2024-01-02")))),
    "timestamp with a zone": (["2024-01-02T03:04:05Z", "2024-01-02T03:04:05+02:00"],
                              "timestamp[us, tz=UTC]",
                              [dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
                               dt.datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)]),
    "nanoseconds": (["2024-01-02 03:04:05.123456789"], "timestamp[ns]", []),
}  # fmt: skip
"""Values of a column, its type, and the values that are read."""


def column(tmp_path: Path, values: list[str], quote: str = "", **options: Any) -> Outcome:
    lines = (f"{quote}{value}{quote}\tx\n" for value in values)
    return read_csv(tmp_path, "v\tt\n" + "".join(lines), delimiter="\t", **options)


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("quote", ["", '"'], ids=["plain", "quoted"])
def test_values_that_a_type_would_change_are_text(tmp_path: Path, case: str, quote: str) -> None:
    outcome = column(tmp_path, TEXTS[case], quote)
    assert [row["v"] for row in outcome.good] == TEXTS[case]


@pytest.mark.parametrize("case", TYPED)
def test_types_are_inferred(tmp_path: Path, case: str) -> None:
    texts, kind, values = TYPED[case]
    outcome = column(tmp_path, texts)
    assert (str(outcome.schema.field("v").type), outcome.bad) == (kind, {})
    assert not values or [row["v"] for row in outcome.good] == values


NUMBER = r"[+-]?[0-9]{1,20}([.,][0-9]{0,20})?([eE][+-]?[0-9]{1,3})?"


@settings(max_examples=examples(100), deadline=None)
@given(
    values=st.lists(
        st.one_of(
            st.from_regex(NUMBER, fullmatch=True),
            st.floats(allow_nan=False).map(repr),
            st.integers(-(2**70), 2**70).map(str),
        ),
        min_size=1,
        max_size=8,
    ),
    late=st.booleans(),
)  # fmt: skip
def test_no_number_is_changed(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], late: bool
) -> None:
    contents = ["".join(f"{value}\tx\n" for value in part) for part in (values[:1], values[1:])]
    contents = contents if late else ["".join(contents)]
    outcome = read_csv(
        tmp_path_factory.mktemp("csv"), *contents, delimiter="\t", sampled=1,
        columnNames=["v", "t"],
    )  # fmt: skip
    read = [row["v"] for row in outcome.good]
    accepted = [
        value for location, value in enumerate(values) if _place(location, late) not in outcome.bad
    ]
    assert len(read) == len(accepted)
    for text, value in zip(accepted, read, strict=True):
        digits = len(Decimal(text).as_tuple().digits) if "," not in text else 0
        as_written = f"{value:.{max(0, digits - 1)}e}" if isinstance(value, float) else str(value)
        assert text == value or Decimal(as_written) == Decimal(text)


def _place(row: int, late: bool) -> tuple[int, int]:
    return (1, row - 1) if late and row else (0, row)


LATE = {
    "int64": ("1", ["A12", "007", "+5", "1.5", "0x1F", "9223372036854775808", "N/A"]),
    "float64": ("1.5", ["A12", "007.5", "9007199254740993", "1e400", "12345678901234567.89"]),
    "long float64": ("0.30000000000000004", ["1234567890123456.7", "1e-400"]),
    "bool": ("true", ["1", "yes"]),
    "date": ("2024-01-02", ["2024-02-30", "2024-01-02 03:04:05", "20240102"]),
    "timestamp": ("2024-01-02 03:04:05", ["2024-01-02T03:04:05Z", "2024-01-02 03:04:05.123456789"]),
}
"""A sampled value of a type, and later values that the type cannot hold as they are written."""


@pytest.mark.parametrize("kind", LATE)
def test_late_value_that_does_not_fit_fails_its_row(tmp_path: Path, kind: str) -> None:
    first, values = LATE[kind]
    contents = ["v\tt\n" + "".join(f"{value}\tx\n" for value in [first, *values, first, ""])]
    outcome = read_csv(tmp_path, f"v\tt\n{first}\tx\n", *contents, sampled=1, delimiter="\t")
    assert sorted(outcome.bad) == [(1, row + 1) for row in range(len(values))]
    for (_, row), error in outcome.bad.items():
        assert values[row - 1] in error
        assert "first rows" in error
        assert "read.options.types: {v: string}" in error
    assert len(outcome.good) == 4
    assert outcome.good[-1]["v"] is None


def test_many_late_values_are_separate_failed_rows(tmp_path: Path) -> None:
    rows = [f"{'x' if number % 3 else ''}{number},t\n" for number in range(3000)]
    contents = ["id,t\n1,t\n", "id,t\n" + "".join(rows)]
    outcome = read_csv(tmp_path, *contents, sampled=1)
    assert [row["id"] for row in outcome.good[1:]] == list(range(0, 3000, 3))
    assert len(outcome.bad) == 2000


def test_types_are_declared(tmp_path: Path) -> None:
    types = {
        **{"zip": "string", "n": "int64", "x": "float64", "d": "decimal<10, 2>", "day": "date"},
        **{"at": "timestamp<UTC>", "tags": "list<int64>", "any": "json"},
    }
    content = (
        "zip\tn\tx\td\tday\tat\ttags\tany\n"
        '501\t007\t1\t1.50\t2024-01-02\t2024-01-02T03:04:05Z\t[1, 2]\t{"a": 1.50}\n'
        "\t\t\t\t\t\t\t\n"
    )
    outcome = read_csv(tmp_path, content, delimiter="\t", quote="", types=types)
    at = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert [tuple(row.values()) for row in outcome.good] == [
        ("501", 7, 1.0, Decimal("1.50"), DAY, at, [1, 2], '{"a": 1.50}'),
        ("", None, None, None, None, None, None, None),
    ]
    assert outcome.schema.field("d").type == pa.decimal128(10, 2)


def test_value_that_does_not_fit_its_declared_type_fails_its_row(tmp_path: Path) -> None:
    for wrong in ("2.5", "0xFF", "-0x1"):
        outcome = read_csv(tmp_path, f"n,t\n1,x\n{wrong},y\n3,z\n", types={"n": "int8"})
        assert [row["n"] for row in outcome.good] == [1, 3]
        assert "its declared type" in outcome.bad[0, 1]


def test_field_that_a_declared_struct_lacks_fails_its_row(tmp_path: Path) -> None:
    content = """s\n'{"x": 1, "y": 2}'\n'{"x": 1}'\n"""
    outcome = read_csv(tmp_path, content, quote="'", types={"s": "struct<x: int64>"})
    assert outcome.good == [{"s": {"x": 1}}]
    assert "'y'" in outcome.bad[0, 0]


def test_declared_type_of_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"read\.options\.types\.nr: .*id, text"):
        read_csv(tmp_path, "id,text\n1,a\n", types={"id": "string", "nr": "int64"})


def test_decimal_comma_applies_to_declared_types(tmp_path: Path) -> None:
    types = {"x": "float64", "d": "decimal<6,2>", "n": "int64"}
    content = "x;d;n\n1,5;2,25;3\n1.5;2,25;3\n1.234,5;2,25;3\n1,5;2.25;3\n1,5;2,25;3,0\n"
    outcome = read_csv(tmp_path, content, delimiter=";", decimal=",", types=types)
    assert outcome.good == [{"x": 1.5, "d": Decimal("2.25"), "n": 3}]
    assert sorted(outcome.bad) == [(0, row) for row in range(1, 5)]


def test_null_values_apply_before_types(tmp_path: Path) -> None:
    content = "n,t\n1,-\n-,null\n?,x\n"
    outcome = read_csv(tmp_path, content, nullValues=["-", "?"])
    assert outcome.good == [
        {"n": 1, "t": None}, {"n": None, "t": "null"}, {"n": None, "t": "x"}
    ]  # fmt: skip


def test_null_fields_of_dumps_do_not_make_a_column_text(tmp_path: Path) -> None:
    content = b"n\tt\n1\tx\n\\N\t\xff\n2\t\\N\n3\t\xffN\n"
    outcome = read_csv(tmp_path, content, delimiter="\t", quote="", escape="\\")
    assert outcome.good == [{"n": 1, "t": "x"}, {"n": 2, "t": None}]
    assert list(outcome.bad) == [(0, 1), (0, 3)]
