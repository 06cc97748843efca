"""Filters, one construct at a time."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.blocks import to_column
from batchinference.pipeline.failures import JobFailure
from batchinference.pipeline.steps.filter import Filter

ROWS = pa.table(
    {
        "n": [1, 2, None, -3],
        "f": [0.5, None, float("nan"), -2.5],
        "s": ["apple", "Pear", None, "é"],
        "b": [True, False, None, True],
        "l": [[1], [1, 2], None, []],
        "raw": [b"ab", b"", None, b"\xff"],
        "two words": [1, 2, 3, 4],
        "zero": [0, 1, 0, 2],
    }
)
T, F = True, False


def mask(expression: str, table: pa.Table = ROWS) -> list[bool]:
    return list(Filter("step", expression).mask(table).to_pylist())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("n > 1", [F, T, F, F]),
        ("n != 1", [F, T, F, T]),
        ("not n == 1", [F, T, F, T]),
        ("-3 <= n < 2", [T, F, F, T]),
        ("0 < n < f + 1", [T, F, F, F]),
        ("n is None", [F, F, T, F]),
        ("n is not None", [T, T, F, T]),
        ("f is None", [F, T, F, F]),
        ("f == f", [T, F, F, T]),
        ("n in [1, -3]", [T, F, F, T]),
        ("n not in [1, -3]", [F, T, F, F]),
        ("not n in (1, -3)", [F, T, F, F]),
        ("n in [1, None]", [T, F, T, F]),
        ("n not in [1, None]", [F, T, F, T]),
        ("n in []", [F, F, F, F]),
        ("s in []", [F, F, F, F]),
        ("s not in []", [T, T, F, T]),
        ("s in [None]", [F, F, T, F]),
        ("n in [1.0, 2.5]", [T, F, F, F]),
        ("s in ['apple', 'é']", [T, F, F, T]),
        ("b", [T, F, F, T]),
        ("not b", [F, T, F, F]),
        ("b == False", [F, T, F, F]),
        ("b and n > 0", [T, F, F, F]),
        ("b or n > 0", [T, T, F, T]),
        ("b is None or b", [T, F, T, T]),
        ("b or True", [T, T, T, T]),
        ("s == 'apple'", [T, F, F, F]),
        ("s < 'apple'", [F, T, F, F]),
        ("'B' < s", [T, T, F, T]),
        ("raw == b'ab'", [T, F, F, F]),
        ("col('two words') >= 3", [F, F, T, T]),
        ("col('n') == n", [T, T, F, T]),
    ],
)
def test_comparisons_and_logic(expression: str, expected: list[bool]) -> None:
    assert mask(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("n + 1 == 2", [T, F, F, F]),
        ("n - f == 0.5", [T, F, F, F]),
        ("n * 2 == 4", [F, T, F, F]),
        ("n / 2 == 0.5", [T, F, F, F]),
        ("n / 2 == -1.5", [F, F, F, T]),
        ("n % 2 == 1", [T, F, F, T]),
        ("n % -2 == -1", [T, F, F, T]),
        ("f % 2 == 1.5", [F, F, F, T]),
        ("-n == 3", [F, F, F, T]),
        ("-f > 0", [F, F, F, T]),
        ("abs(n) > 1", [F, T, F, T]),
        ("(n + 1) * 2 - 1 > 4", [F, T, F, F]),
    ],
)
def test_arithmetic_is_pythons(expression: str, expected: list[bool]) -> None:
    assert mask(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("6 / zero > 0", [F, T, F, T]),
        ("6 % zero == 0", [F, T, F, T]),
        ("not 6 / zero > 0", [F, F, F, F]),
        ("6 / zero is None", [T, F, T, F]),
        ("zero != 0 and 6 / zero == 3", [F, F, F, T]),
        ("zero == 0 or 6 / zero == 3", [T, F, T, T]),
        ("f / 0.0 > 0", [F, F, F, F]),
    ],
)
def test_a_division_by_zero_is_null(expression: str, expected: list[bool]) -> None:
    assert mask(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("len(s) == 5", [T, F, F, F]),
        ("len(s) == 1", [F, F, F, T]),
        ("len(lower(s)) == 4", [F, T, F, F]),
        ("len(l) > 1", [F, T, F, F]),
        ("len(l) == 0", [F, F, F, T]),
        ("len(col('l')) == 1", [T, F, F, F]),
        ("len(raw) == 2", [T, F, F, F]),
        ("len('four') == len(s)", [F, T, F, F]),
        ("lower(s) == 'pear'", [F, T, F, F]),
        ("upper(s) == 'É'", [F, F, F, T]),
        ("startswith(s, 'a')", [T, F, F, F]),
        ("endswith(s, 'r')", [F, T, F, F]),
        ("contains(s, 'ea')", [F, T, F, F]),
        ("contains(s, '.')", [F, F, F, F]),
        ("matches(s, '^[a-z]+$')", [T, F, F, F]),
        ("matches(s, 'p')", [T, F, F, F]),
        ("not contains(s, 'p')", [F, T, F, T]),
        ("contains(lower(s), 'p')", [T, T, F, F]),
    ],
)
def test_functions(expression: str, expected: list[bool]) -> None:
    assert mask(expression) == expected


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int8()),
                                  pa.list_(pa.int8(), 2)], ids=str)  # fmt: skip
def test_the_length_of_every_kind_of_list(kind: pa.DataType) -> None:
    assert mask("len(a) == 2", pa.table({"a": pa.array([[1, 2], None], kind)})) == [T, F]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_every_kind_of_text(kind: pa.DataType) -> None:
    assert mask("a == 'x'", pa.table({"a": pa.array(["x", "y", None], kind)})) == [T, F, F]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32()], ids=str
)
def test_narrow_numbers_do_not_overflow(kind: pa.DataType) -> None:
    table = pa.table({"a": pa.array([1, 100], kind)})
    assert mask("a * 100000 > 200000", table) == [F, T]
    assert mask("a * a * a * a * a > 100", table) == [F, T]
    assert mask("a - 50 < 0", table) == [T, F]
    assert mask("-a < 0", table) == [T, T]
    assert mask("a in [1, 1000]", table) == [T, F]


def test_large_whole_numbers_are_exact() -> None:
    table = pa.table({"a": [2**62 + 1, 2**62 + 2, -(2**62) - 1]})
    assert mask("a % 2 == 1", table) == [T, F, T]
    assert mask("a % 10 == 5", table) == [(value % 10) == 5 for value in table["a"].to_pylist()]
    assert mask("a / 2 > 0", table) == [T, T, F]


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        (pa.array([0.5, 1.5], pa.float16()), "a * 2 == 1"),
        (pa.array([0.5, 1.5], pa.float32()), "a / 2 == 0.25"),
        (pa.array([Decimal("0.50"), Decimal("1.50")]), "a / 2 == 0.25"),
        (pa.array([True, False]), "a / 2 == 0.5"),
        (pa.array([dt.date(2020, 1, 1), None]), "a is not None"),
        (pa.array(["x", "y"]).dictionary_encode(), "a == 'x'"),
        (pa.nulls(2), "a is None and a == 1 or n == 1"),
        (to_column(np.zeros((2, 3))), "a is not None and n == 1"),
    ],
    ids=["float16", "float32", "decimal", "bool", "date", "dictionary", "null", "tensor"],
)
def test_other_types(column: pa.Array, expression: str) -> None:
    assert mask(expression, pa.table({"a": column, "n": [1, 2]})) == [T, F]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("s > 1", "input types"),
        ("n == 'one'", "input types"),
        ("s + 1 == 2", "input types"),
        ("s / 2 == 1", "string is no number"),
        ("s % 2 == 1", "string is no number"),
        ("-s == 1", "input types"),
        ("abs(s) == 1", "input types"),
        ("len(n) > 1", "input types"),
        ("lower(n) == 'a'", "input types"),
        ("startswith(n, 'a')", "input types"),
        ("matches(s, '(')", "Invalid regular expression"),
        ("s and b", "input types"),
        ("not n", "input types"),
        ("s in [1, 2]", "type"),
        ("n in [1, 'a']", "Could not convert 'a'"),
        ("b + 1 == 2", "input types"),
        ("l == 1", "input types"),
    ],
)
def test_types_that_do_not_fit_fail_the_job_by_step_and_expression(
    expression: str, words: str
) -> None:
    with pytest.raises(JobFailure) as failure:
        mask(expression)
    message = failure.value.message
    assert message.startswith(f"step 'step': the filter cannot be computed: {expression}: ")
    assert words in message


@pytest.mark.parametrize("expression", ["n", "n + 1", "lower(s)", "l"])
def test_what_is_neither_true_nor_false_fails_the_job(expression: str) -> None:
    with pytest.raises(JobFailure, match=r"step 'step': the filter gives .*, not true or false: "):
        mask(expression)


def test_a_missing_column_fails_the_job_and_names_those_that_are_there() -> None:
    with pytest.raises(JobFailure, match="'step' reads column 'm', but the columns here are n, f,"):
        mask("m > 1 and n > 1")


def test_a_row_of_which_it_cannot_be_computed_does_not_fail_the_job() -> None:
    table = pa.table({"a": [1, 2**63 - 1]})
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        mask("a + 1 > 0", table)
    assert mask("a + 1 > 0", table.slice(0, 1)) == [T]


def test_chunks_and_slices_are_computed_as_one() -> None:
    table = pa.concat_tables([ROWS.slice(1, 2), ROWS.slice(0, 1), ROWS.slice(3)])
    assert mask("n > 0", table) == [T, F, T, F]
