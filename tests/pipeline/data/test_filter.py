"""Filters, one construct and one column type at a time."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.blocks import to_column
from batchinference.pipeline.failures import BadInput, JobFailure
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
DAY = dt.datetime.fromisoformat("2024-01-01T12:00")
LARGEST = 2**64 - 1


def mask(expression: str, table: pa.Table = ROWS) -> list[bool]:
    return list(Filter("step", expression).mask(table).to_pylist())


def column_mask(expression: str, column: pa.Array) -> list[bool]:
    """The mask of a table with the column `a`, and the column `one` of ones."""
    return mask(expression, pa.table({"a": column, "one": pa.array([1] * len(column))}))


def assert_masks(cases: str, table: pa.Table = ROWS) -> None:
    """Check lines of a mask, `T` for each row that is kept, and the expressions that give it."""
    lines = (line.split(maxsplit=1) for line in cases.strip().splitlines())
    expected = {each: kept for kept, listed in lines for each in listed.split(" ; ")}
    found = {each: "".join(".T"[kept] for kept in mask(each, table)) for each in expected}
    assert found == expected


COMPARISONS = """
    TTTT  b or True
    TT.T  n is not None ; s not in [] ; b or n > 0 ; 'B' < s ; col('n') == n
    T.TT  b is None or b
    T.T.  n in [1, None]
    T..T  -3 <= n < 2 ; f == f ; n in [1, -3] ; s in ['apple', 'é'] ; b
    T...  0 < n < f + 1 ; n in [1.0, 2.5] ; b and n > 0 ; s == 'apple' ; raw == b'ab'
    .T.T  n != 1 ; not n == 1 ; n not in [1, None]
    .T..  n > 1 ; f is None ; n not in [1, -3] ; not n in (1, -3) ; not b ; b == False
    .T..  s < 'apple'
    ..TT  col('two words') >= 3
    ..T.  n is None ; s in [None]
    ....  n in [] ; s in []
"""

ARITHMETIC = """
    T..T  n % 2 == 1 ; n % -2 == -1
    T...  n + 1 == 2 ; n - f == 0.5 ; n / 2 == 0.5
    .T.T  abs(n) > 1
    .T..  n * 2 == 4 ; (n + 1) * 2 - 1 > 4
    ...T  n / 2 == -1.5 ; f % 2 == 1.5 ; -n == 3 ; -f > 0
"""

DIVISIONS_BY_ZERO = """
    T.TT  zero == 0 or 6 / zero == 3
    T.T.  6 / zero is None
    .T.T  6 / zero > 0 ; 6 % zero == 0
    ...T  zero != 0 and 6 / zero == 3
    ....  not 6 / zero > 0 ; f / 0.0 > 0
"""

FUNCTIONS = """
    TT..  contains(lower(s), 'p')
    T...  len(s) == 5 ; len(col('l')) == 1 ; len(raw) == 2 ; startswith(s, 'a')
    T...  matches(s, '^[a-z]+$') ; matches(s, 'p')
    .T.T  not contains(s, 'p')
    .T..  len(lower(s)) == 4 ; len(l) > 1 ; len('four') == len(s) ; lower(s) == 'pear'
    .T..  endswith(s, 'r') ; contains(s, 'ea')
    ...T  len(s) == 1 ; len(l) == 0 ; upper(s) == 'É'
    ....  contains(s, '.')
"""


@pytest.mark.parametrize(
    "cases",
    [COMPARISONS, ARITHMETIC, DIVISIONS_BY_ZERO, FUNCTIONS],
    ids=["comparisons", "arithmetic", "divisions by zero", "functions"],
)
def test_filter_keeps_the_expected_rows(cases: str) -> None:
    assert_masks(cases)


def test_every_list_and_text_type_is_filtered() -> None:
    for kind in (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)):
        assert column_mask("len(a) == 2", pa.array([[1, 2], None], kind)) == [T, F]
    for kind in (pa.string(), pa.large_string()):
        assert column_mask("a == 'x'", pa.array(["x", "y", None], kind)) == [T, F, F]


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


def test_large_integers_are_exact() -> None:
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
def test_other_types_are_computed(column: pa.Array, expression: str) -> None:
    assert mask(expression, pa.table({"a": column, "n": [1, 2]})) == [T, F]


MISMATCHES = {
    "input types": "s > 1 ; n == 'one' ; s + 1 == 2 ; -s == 1 ; abs(s) == 1 ; len(n) > 1"
    " ; lower(n) == 'a' ; startswith(n, 'a') ; s and b ; not n ; b + 1 == 2 ; l == 1",
    "string is no number": "s / 2 == 1 ; s % 2 == 1",
    "Invalid regular expression": "matches(s, '(')",
    "type": "s in [1, 2]",
    "Could not convert 'a'": "n in [1, 'a']",
}


def test_a_type_mismatch_fails_the_job() -> None:
    cases = [(each, words) for words, listed in MISMATCHES.items() for each in listed.split(" ; ")]
    for expression, words in cases:
        with pytest.raises(JobFailure) as failure:
            mask(expression)
        start = f"step 'step': the filter cannot be computed: {expression}: "
        assert failure.value.message.startswith(start)
        assert words in failure.value.message


@pytest.mark.parametrize("expression", ["n", "n + 1", "lower(s)", "l"])
def test_a_result_that_is_not_boolean_fails_the_job(expression: str) -> None:
    with pytest.raises(JobFailure, match=r"step 'step': the filter gives .*, not true or false: "):
        mask(expression)


def test_a_missing_column_fails_the_job() -> None:
    with pytest.raises(JobFailure, match="'step' reads column 'm', but the columns here are n, f,"):
        mask("m > 1 and n > 1")


def test_an_overflow_is_an_error_of_its_row() -> None:
    table = pa.table({"a": [1, 2**63 - 1]})
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        mask("a + 1 > 0", table)
    assert mask("a + 1 > 0", table.slice(0, 1)) == [T]


def test_chunks_and_slices_are_filtered_as_one_table() -> None:
    table = pa.concat_tables([ROWS.slice(1, 2), ROWS.slice(0, 1), ROWS.slice(3)])
    assert mask("n > 0", table) == [T, F, T, F]


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date32(), pa.date64()],
    ids=str,
)
def test_dates_are_compared_with_text(kind: pa.DataType) -> None:
    column = pa.array([dt.date(2024, 1, 1), dt.date(2024, 3, 1), None]).cast(pa.timestamp("us"))
    if "UTC" in str(kind):
        column = pa.compute.assume_timezone(column, "UTC")
    column = column.cast(kind)
    assert column_mask("a > '2024-01-01'", column) == [F, T, F]
    assert column_mask("'2024-01-01' == a", column) == [T, F, F]
    assert column_mask("'2023-12-31' < a < '2024-02-01'", column) == [T, F, F]
    assert column_mask("a in ['2024-03-01', '2025-01-01']", column) == [F, T, F]
    assert column_mask("a not in ['2024-03-01']", column) == [T, F, F]


def test_text_without_zone_has_the_zone_of_the_column() -> None:
    berlin = pa.timestamp("ms", "Europe/Berlin")
    for kind, expression, expected in [
        (pa.timestamp("us"), "a == '2024-01-01T12:00'", T),
        (pa.timestamp("us", "UTC"), "a == '2024-01-01 12:00:00'", T),
        (pa.timestamp("us", "UTC"), "a == '2024-01-01T13:00:00+01:00'", T),
        (berlin, "a == '2024-01-01T12:00:00Z'", T),
        (berlin, "a == '2024-01-01T13:00:00'", T),
        (berlin, "a == '2024-01-01T12:00:00'", F),
    ]:
        moment = DAY.replace(tzinfo=dt.UTC) if kind.tz else DAY
        assert column_mask(expression, pa.array([moment], kind)) == [expected]


def test_times_of_day_are_compared_with_text() -> None:
    assert column_mask("a > '08:30:00'", pa.array([dt.time(9), dt.time(8)])) == [T, F]


def test_text_that_is_no_date_is_rejected() -> None:
    for column, text in [
        (pa.array([DAY]), "soon"),
        (pa.array([DAY]), "2024-13-01"),
        (pa.array([DAY]), "2024-01-01T00:00:00Z"),
        (pa.array([DAY], pa.timestamp("us", "UTC")), "01.02.2024"),
        (pa.array([DAY.date()]), "2024-01-01T12:00"),
        (pa.array([DAY.time()]), "noon"),
    ]:
        for expression in (f"a > '{text}'", f"a in ['{text}']"):
            with pytest.raises(BadInput) as failure:
                column_mask(expression, column)
            assert f"step 'step': '{text}' is no {column.type}: " in failure.value.message


DECIMALS = """
    TT.  a > 0.001 ; a < 9223372036854775807 ; a < 1e300
    T..  a > 1 ; a == 1.5 ; a > one ; a in [1, 1.5] ; a not in [0.10] ; a + 1 == 2.5
    T..  -a == -1.5 ; a / 2 == 0.75 ; a % 1 == 0.5
    .T.  a in [0.1, 0.001] ; a * 3 == 0.3 ; a - 2 < -1 ; abs(a - 1) == 0.9 ; a + one == 1.1
    .T.  a * 0.5 == 0.05
"""
UNSIGNED = """
    TT.  a > 1 ; a > -1 ; a > 1.5 ; a > one ; a == a ; -a < 0 ; a + a > a ; a % 10 == 5
    T..  5 < a ; a not in [5] ; a + 1 > 6 ; a * 2 > 10 ; a / 2 > 3 ; abs(a) > 5
    .T.  a in [5, -1] ; a in [5.0, 5.5] ; a - 6 < 0 ; a - one == 4
    ...  a == -1
"""


@pytest.mark.parametrize(
    "kind", [pa.decimal128(5, 2), pa.decimal128(38, 2), pa.decimal256(50, 2)], ids=str
)
def test_decimals_are_computed_exactly(kind: pa.DataType) -> None:
    column = pa.array([Decimal("1.50"), Decimal("0.10"), None], kind)
    assert_masks(DECIMALS, pa.table({"a": column, "one": [1, 1, 1]}))


def test_the_largest_unsigned_integer_is_computed() -> None:
    column = pa.array([LARGEST, 5, None], pa.uint64())
    assert_masks(UNSIGNED, pa.table({"a": column, "one": [1, 1, 1]}))


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=str)
def test_large_integers_are_compared_with_fractions(kind: pa.DataType) -> None:
    column = pa.array([2**62 + 1, 3], kind)
    assert column_mask("a > 3.5", column) == [T, F]
    assert column_mask("a * 1.5 > 5", column) == [T, F]


def test_len_works_for_maps() -> None:
    column = pa.array([[("k", 1), ("m", 2)], [], None], pa.map_(pa.string(), pa.int64()))
    assert column_mask("len(a) > 1", column) == [T, F, F]
    assert column_mask("len(a) == 0", column) == [F, T, F]


def test_dictionary_and_view_texts_are_filtered() -> None:
    texts = pa.array(["Ox", "y", None])
    cases = "T..  lower(a) == 'ox' ; len(a) == 2 ; a in ['Ox'] ; a == 'Ox' ; matches(a, 'x')"
    for column in (texts.dictionary_encode(), texts.cast(pa.string_view())):
        assert_masks(cases, pa.table({"a": column}))


def test_len_works_for_fixed_size_binary() -> None:
    assert column_mask("len(a) == 2", pa.array([b"ab", None], pa.binary(2))) == [T, F]


@pytest.mark.parametrize("expression", ["a > 1", "a == '1 day'"])
def test_a_duration_fails_the_job(expression: str) -> None:
    with pytest.raises(JobFailure, match="the filter cannot be computed"):
        column_mask(expression, pa.array([dt.timedelta(days=1)]))
