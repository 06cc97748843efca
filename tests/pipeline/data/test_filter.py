"""Filters: the rows that each kind of expression keeps, and expressions that fail.

The result of a row does not depend on other rows of its block. Random filters over random rows are
compared with Python's own evaluation."""

from __future__ import annotations

import ast
import datetime as dt
import math
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.expression import ColumnExpression
from batchinference.pipeline.steps.column_steps import Filter
from batchinference.pipeline.steps.transform import TransformResult
from plugins.messages import Messages
from support.tiers import examples

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


def mask(expression: str, table: pa.Table = ROWS) -> list[bool]:
    return list(Filter("step", expression).mask(table).to_pylist())


def assert_masks(cases: str, table: pa.Table = ROWS) -> None:
    """Check lines of a mask (`T` for each kept row) and the expressions that give this mask."""
    lines = (line.split(maxsplit=1) for line in cases.strip().splitlines())
    expected = {each: kept for kept, listed in lines for each in listed.split(" ; ")}
    by_each = {each: "".join(".T"[kept] for kept in mask(each, table)) for each in expected}
    assert by_each == expected, table.schema


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
    T..T  n % 2 == 1 ; n % -2 == -1 ; round(f, 0) in [0, -2] ; round(f, 1) == f
    T..T  round(n / 3, 2) in [0.33, -1] ; round(n) == n and round(n % 2 - 0.25) == 1
    T...  n + 1 == 2 ; n - f == 0.5 ; n / 2 == 0.5 ; 1e20 * n % 3 == 1
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


NESTED = pa.table(
    {
        "s": [{"label": "P", "score": 0.9, "n": {"x": [1, 2]}}, None, {"label": None}],
        "l": [[{"label": "P"}, {"label": "N"}], None, []],
        "m": pa.array([[("k", 1)], None, [("j", 1)]], pa.map_(pa.string(), pa.int8())),
        "s.label": ["Q", "P", "R"],
        "null": pa.nulls(3),
        "small": pa.array([[2**31 - 1, 7], None, [1, 1]], pa.list_(pa.int32(), 2)),
    }
)
FIELDS = """
    TTT  null.a[0].b is None ; l[2].label is None ; s.n.x[2] is None ; l[2147483646] is None
    T..  s.label == 'P' ; s['label'] == 'P' ; col('s').label == 'P' ; lower(s.label) == 'p'
    T..  l[0].label == 'P' ; l[1].label == 'N' ; len(l) == 2 ; s.n.x[1] == 2 ; s.score > 0.5
    T..  m['k'] == 1 ; m.k + 1 == 2 ; small[0] + small[1] > 2 ; l[0] is not None ; len(s.n.x) == 2
    .TT  s.label is None ; l[0].label is None ; m['k'] is None ; s.n.x[0] is None
    .T.  s is None ; l is None ; col('s.label') == 'P' ; small[1] is None
"""


def test_fields_and_items_are_null_safe() -> None:
    assert_masks(FIELDS, NESTED)
    assert_masks("T..  s.label == 'P' ; l[0].label == 'P'", NESTED.slice(0, 3))
    assert mask("l[0].label == 'P'", NESTED.slice(1)) == [False, False]


def test_items_of_tensors_are_those_of_lists() -> None:
    table = pa.table(
        {
            "vector": to_column(np.arange(6, dtype=np.float32).reshape(3, 2)),
            "picture": to_column(np.arange(12, dtype=np.uint8).reshape(3, 2, 2)),
            "ragged": to_column([np.zeros(2), np.ones(3), np.ones(1)]),
        }
    )
    assert_masks(
        """
        TTT  len(vector) == 2 ; len(picture[0]) == 2 ; vector is not None
        .TT  vector[0] > 1 ; ragged[0] == 1
        T..  picture[1][0] == 2 ; len(ragged) == 2
        ...  vector[2] == 1
        """,
        table,
    )


@pytest.mark.parametrize(
    "expression",
    ["s.lable", "l.label", "s[0]", "s.label[0]", "m[0]", "s.label.x", "s == 'P'", "l == 'P'"],
)
def test_unknown_field_names_the_fields(expression: str, messages: Messages) -> None:
    with messages.raises(JobFailure):
        mask(expression, NESTED)


@pytest.mark.parametrize(
    "cases",
    [COMPARISONS, ARITHMETIC, DIVISIONS_BY_ZERO, FUNCTIONS],
    ids=["comparisons", "arithmetic", "divisions by zero", "functions"],
)
def test_filter_keeps_the_expected_rows(cases: str) -> None:
    assert_masks(cases)


MISMATCHES = {
    "no such operation": "s > 1 ; n == 'one' ; s + 1 == 2 ; -s == 1 ; abs(s) == 1 ; len(n) > 1"
    " ; lower(n) == 'a' ; startswith(n, 'a') ; s and b ; not n ; b + 1 == 2 ; l == 1",
    "string cannot be divided": "s / 2 == 1 ; s % 2 == 1",
    "Invalid regular expression": "matches(s, '(')",
    "type": "s in [1, 2]",
    "Could not convert 'a'": "n in [1, 'a']",
}


def test_type_mismatch_names_the_expression() -> None:
    for reason, expressions in MISMATCHES.items():
        for expression in expressions.split(" ; "):
            with pytest.raises(JobFailure) as failure:
                mask(expression)
            start = f"step 'step': the filter cannot be computed: {expression}: "
            assert failure.value.message.startswith(start)
            assert reason in failure.value.message


def test_result_that_is_not_boolean_fails_the_rows(messages: Messages) -> None:
    for expression in ("n", "n + 1", "lower(s)", "l"):
        with messages.raises(JobFailure):
            mask(expression)
        result = Filter("step", expression)(ROWS)
        assert isinstance(result, TransformResult)
        assert set(result.failed) == set(range(ROWS.num_rows))
        messages.check(result.failed[0])


def test_missing_column_fails_the_job(messages: Messages) -> None:
    with messages.raises(JobFailure):
        mask("m > 1 and n > 1")


def test_invalid_date_is_rejected() -> None:
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
                mask(expression, pa.table({"a": column}))
            assert (
                f"step 'step': the filter: '{text}' is not a {column.type}: "
                in failure.value.message
            )


NARROW = (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32())
DATES = pa.array([dt.date(2024, 1, 1), dt.date(2024, 3, 1), None]).cast(pa.timestamp("us"))
DATE_KINDS = (pa.timestamp("s"), pa.timestamp("ns"), pa.date32(), pa.date64())
TEXTS = pa.array(["Ox", "y", None])
UUIDS = pa.array([bytes(16), None], pa.uuid())
COLUMNS: dict[str, tuple[list[pa.Array], str]] = {
    "lists": (
        [pa.array([[1, 2], None], kind)
         for kind in (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2))],
        "T.  len(a) == 2",
    ),
    "texts": ([*map(TEXTS.cast, (pa.string(), pa.large_string(), pa.json_()))], "T..  a == 'Ox'"),
    "UUIDs": ([UUIDS], "T.  endswith(str(a), '-000000000000')"),
    "UUIDs in lists": (
        [pa.ListArray.from_arrays([0, 2, 2], UUIDS)],
        """
            TT  a is not None ; a[1] is None
            T.  a[0] == '00000000-0000-0000-0000-000000000000' ; endswith(a[0], '-000000000000')
            .T  a[0] is None
        """,
    ),
    "UUIDs in maps": (
        [pa.MapArray.from_arrays([0, 2, 2], pa.array(["k", "n"]), UUIDS)],
        "T.  endswith(a.k, '-000000000000')",
    ),
    "JSON in lists": (
        [pa.ListArray.from_arrays([0, 2, 3], TEXTS.cast(pa.json_()))],
        "T.  a[0] == 'Ox' ; a[1] == 'y'",
    ),
    "dictionary texts": (
        [TEXTS.dictionary_encode()],
        "T..  lower(a) == 'ox' ; len(a) == 2 ; a in ['Ox'] ; a == 'Ox' ; matches(a, 'x')",
    ),
    "narrow numbers": (
        [pa.array([1, 100], kind) for kind in NARROW],
        """
            TT  -a < 0
            T.  a - 50 < 0 ; a in [1, 1000]
            .T  a * 100000 > 200000 ; a * a * a * a * a > 100
        """,
    ),
    "large integers": (
        [pa.array([2**62 + 1, 2**62 + 2, -(2**62) - 1])],
        """
            TT.  a / 2 > 0
            T.T  a % 2 == 1 ; a % 10 == 5
        """,
    ),
    "large integers and fractions": (
        [pa.array([2**62 + 1, 3], kind) for kind in (pa.int64(), pa.uint64())],
        "T.  a > 3.5 ; a * 1.5 > 5",
    ),
    "integers that float64 does not hold": (
        [pa.array([2**53 + 1, 2**53], kind) for kind in (pa.int64(), pa.uint64())],
        """
            T.  a > 9007199254740992.0 ; a not in [9007199254740992.0, 0.5]
            .T  a == 9007199254740992.0 ; a in [9007199254740992.0] ; a <= 9007199254740992.5
        """,
    ),
    "float16": ([pa.array([0.5, 1.5], pa.float16())], "T.  a * 2 == 1"),
    "float32": (
        [pa.array([0.5, 1.5], pa.float32()), pa.array([0.1, 0.2], pa.float32())],
        "T.  a == 0.5 or a == 0.1 ; a in [0.5, 0.1]",
    ),
    "decimals with many digits": (
        [pa.array([Decimal("9007199254740993.10"), Decimal("9007199254740993.20")])],
        """
            T.  str(a) == '9007199254740993.10' ; (a if n == 1 else None) is not None
            T.  str(a if n == 1 else 0) == '9007199254740993.10' ; int(a) - n == 9007199254740992
            T.  str(a if n == 1 else 0.5) == '9007199254740993.10' ; round(a) - 1 == int(a) - n
        """,
    ),
    "decimals": (
        [pa.array([Decimal("1.50"), Decimal("0.10"), None], kind)
         for kind in (pa.decimal128(5, 2), pa.decimal128(38, 2), pa.decimal256(50, 2))],
        """
            TT.  a > 0.001 ; a < 9223372036854775807 ; a == a ; a / 2 > 0 ; a in [1.5, 0.1]
            T..  a > 1 ; a == 1.5 ; a + 1 == 2.5 ; -a == -1.5 ; a == n + 0.5
            .T.  a * 3 < 0.4 ; a - 2 < -1 ; a * 0.5 == 0.05 ; a == 0.1 ; a % 1 == 0.1
        """,
    ),
    "99.99": ([pa.array([Decimal("99.99"), None])], "T.  a == 99.99 ; a in [99.99] ; round(a) > 9"),
    "booleans": ([pa.array([True, False])], "T.  a / 2 == 0.5"),
    "nulls": ([pa.nulls(2)], "T.  a is None and a == 1 or n == 1"),
    "tensors": ([to_column(np.zeros((2, 3)))], "T.  a is not None and n == 1"),
    "maps": (
        [pa.array([[("k", 1), ("m", 2)], [], None], pa.map_(pa.string(), pa.int64()))],
        """
            T..  len(a) > 1
            .T.  len(a) == 0
        """,
    ),
    "binary of one length": ([pa.array([b"ab", None], pa.binary(2))], "T.  len(a) == 2"),
    "dates and times": (
        [*map(DATES.cast, DATE_KINDS), pa.compute.assume_timezone(DATES, "UTC")],
        """
            TT.  a is not None
            T..  '2024-01-01' == a ; '2023-12-31' < a < '2024-02-01' ; a not in ['2024-03-01']
            .T.  a > '2024-01-01' ; a in ['2024-03-01', '2025-01-01']
        """,
    ),
    "times without a zone": ([pa.array([DAY])], "T  a == '2024-01-01T12:00'"),
    "times in UTC": (
        [pa.array([DAY.replace(tzinfo=dt.UTC)])],
        "T  a == '2024-01-01 12:00:00' ; a == '2024-01-01T13:00:00+01:00'",
    ),
    "times in Berlin": (
        [pa.array([DAY.replace(tzinfo=dt.UTC)], pa.timestamp("ms", "Europe/Berlin"))],
        """
            T  a == '2024-01-01T12:00:00Z' ; a == '2024-01-01T13:00:00'
            .  a == '2024-01-01T12:00:00'
        """,
    ),
    "times of day": ([pa.array([dt.time(9), dt.time(8)])], "T.  a > '08:30:00'"),
}  # fmt: skip
"""Columns of each type, and the masks that expressions give for all of them."""


COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize(("columns", "cases"), COLUMNS.values(), ids=COLUMNS)
def test_every_column_type_is_filtered(columns: list[pa.Array], cases: str) -> None:
    for column in columns:
        size = len(column)
        assert_masks(cases, pa.table({"a": column, "one": [1] * size, "n": range(1, size + 1)}))


def test_integers_are_not_rounded_to_compare_them_with_a_column_of_fractions() -> None:
    floats = pa.array([2.0**53, 3.0])
    assert mask("i == f", pa.table({"i": [4, 3], "f": floats})) == [False, True]
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        mask("i == f", pa.table({"i": [2**53 + 1, 3], "f": floats}))


@pytest.mark.parametrize("number", [5, 2**24 + 1, 2**53 + 1, -(2**53) - 1, 2**63 - 1])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_constant_that_a_column_of_fractions_does_not_hold_is_not_rounded(
    kind: pa.DataType, number: int
) -> None:
    nearest = [number, math.nextafter(number, math.inf), math.nextafter(number, -math.inf)]
    column = pa.array([*map(float, nearest), 2.0**24, 0.5, math.nan, math.inf, -math.inf], kind)
    values = column.to_pylist()
    for name, compare in COMPARISONS.items():
        right, left = f"a {name} {number}", f"{number} {name} a"
        assert mask(right, pa.table({"a": column})) == [compare(a, number) for a in values]
        assert mask(left, pa.table({"a": column})) == [compare(number, a) for a in values]
    listed = mask(f"a in [{number}, 0.5]", pa.table({"a": column}))
    assert listed == [a in [number, 0.5] for a in values]


def test_uint64_above_the_largest_int64_fails() -> None:
    table = pa.table({"u": pa.array([5, 15, None], pa.uint64()), "n": [5, 6, 7]})
    assert mask("u == n or u % 10 == 1", table) == [True, False, False]
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        mask("u > 10", pa.table({"u": pa.array([2**64 - 1], pa.uint64())}))


VALUES = {
    "n": [1, -3, 20_000_001],
    "f": [0.5, -2.5],
    "s": ["apple", "é"],
    "b": [True, False],
    "l": [[1], []],
    "d": [Decimal("1.50"), Decimal("-0.25")],
    "t": [dt.datetime.fromisoformat("2024-01-02"), dt.datetime.fromisoformat("1999-12-31")],
}
SCHEMA = pa.schema(
    [
        *(("n", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_())),
        *(("l", pa.list_(pa.int64())), ("d", pa.decimal128(9, 2)), ("t", pa.timestamp("us"))),
    ]
)
ROW = st.fixed_dictionaries(
    {name: st.none() | st.sampled_from(values) for name, values in VALUES.items()}
)
EXPRESSIONS = [
    *("n == 1", "n != 1", "n < 2", "1 >= n", "n > f", "n > 0.5", "0 < n < f + 1", "n == n"),
    *("n is None", "n is not None", "lower(s) is None", "not n > 1", "not b", "b == True"),
    *("n in [1, 2]", "n not in [1, 2]", "n in [1, None]", "n not in [1, None]", "n not in []"),
    *("s in ['apple']", "s not in ['apple', None]", "t in ['2024-01-02']"),
    *("n + 1 > f", "n - f > 0", "n * n > 2", "n / f > 0", "n % 2 == 1", "1 / n > 0", "1 % n > 0"),
    *("-n > 0", "-f > 0", "abs(n) > 1", "abs(n - f) > 1", "d * 2 > 1", "-d < 0"),
    *("len(s) == 1", "len(l) == 1", "len(lower(s)) > 1", "lower(s) == 'apple'", "upper(s) > 'B'"),
    *("startswith(s, 'a')", "endswith(s, 'e')", "contains(s, 'p')", "matches(s, '^a')"),
    *("not matches(s, 'p')", "b", "b and n > 0", "b or n > 0", "n > 0 or b is None", "n > 0 and b"),
    *("s < 'b'", "s == 'apple' or b", "t > '2000-01-01'", "d >= 1", "len(s) + n > 2"),
    *("(n > 1) == b", "(s == 'é') != (n == 1)", "b or True"),
]


def block(rows: list[dict[str, object]]) -> pa.Table:
    """Return rows as read from JSON Lines: a column that has only nulls has no type."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    for location, name in enumerate(SCHEMA.names):
        if table.column(name).null_count == len(rows):
            table = table.set_column(location, name, pa.nulls(len(rows)))
    return table


@settings(max_examples=examples(20, landing=4), deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=4), data=st.data())
def test_result_does_not_depend_on_blocks(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    wrong = []
    for expression in EXPRESSIONS:
        step = Filter("step", expression)
        values = Filter("step", expression).mask(pa.Table.from_pylist(rows, SCHEMA)).to_pylist()
        by_part = [kept for part in parts for kept in step.mask(block(part)).to_pylist()]
        by_row = [kept for row in rows for kept in step.mask(block([row])).to_pylist()]
        if not values == by_part == by_row:
            wrong.append((expression, values, by_part, by_row))
    assert wrong == []


def texts_of(values: pa.Array) -> list[Any]:
    return list(ColumnExpression("step", "str(v)")(pa.table({"v": values})).to_pylist())


EDGES = [1.0, -0.0, 0.1, 1e15, 1.5e15, 1234567890123456.5, 1e16, 1e-4, 1e-5, 1.25e-5, 1e-6, 5e-324]


@given(st.lists(st.floats() | st.sampled_from(EDGES) | st.integers(-(2**60), 2**60).map(float)))
@settings(max_examples=examples(150))
def test_text_of_a_number_is_that_of_python(values: list[float]) -> None:
    values += EDGES
    assert texts_of(pa.array(values, pa.float64())) == list(map(str, values))


def test_text_of_a_number_of_single_precision_has_the_fewest_digits() -> None:
    values = pa.array([1, 0.1, 1e-5, None], pa.float32())
    assert texts_of(values) == ["1.0", "0.1", "1e-05", None]


def test_text_of_a_condition_or_integer_is_that_of_python() -> None:
    assert texts_of(pa.array([True, False, None])) == ["True", "False", None]
    assert texts_of(pa.array([1, -2, None])) == ["1", "-2", None]
    assert texts_of(pa.array(["a", None])) == ["a", None]
    for value in (DAY, DAY.date(), DAY.time(), DAY.replace(tzinfo=dt.UTC), DAY - DAY):
        assert texts_of(pa.array([value, None])) == [str(value), None]
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        texts_of(pa.array([b"\xff"]))
    assert mask("str(b) == 'True' or str(1.0) != '1.0'") == [T, F, F, T]


Row = dict[str, Any]
RANDOM_SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("u", pa.uint8()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("t", pa.large_string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int8())),
    ]
)
QUARTERS = st.integers(-4000, 4000).map(lambda number: number / 4)
LETTERS = st.text("aAbBéÉ .", max_size=4)


def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


RANDOM_ROWS = st.fixed_dictionaries(
    {
        "i": column(st.integers(-1000, 1000)),
        "u": column(st.integers(0, 255)),
        "f": column(QUARTERS | st.just(float("nan"))),
        "s": column(LETTERS),
        "t": column(LETTERS),
        "b": column(st.booleans()),
        "l": column(st.lists(st.integers(0, 9), max_size=3)),
    }
)


def form(pattern: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return a strategy for the pattern with drawn values in its placeholders."""
    return st.tuples(*parts).map(lambda drawn: pattern.format(*drawn))


texts = st.recursive(
    st.sampled_from(["s", "t", "col('s')"]) | LETTERS.map(repr),
    lambda inner: (
        form("lower({})", inner)
        | form("upper({})", inner)
        | form("({} + {})", inner, inner)
        | form("({} if b else {})", inner, inner)
    ),
    max_leaves=3,
)
small = (
    st.sampled_from(["i", "u", "f", "0.1", "1e20"])
    | st.integers(-9, 9).map(str)
    | QUARTERS.map(str)
)
numbers = st.recursive(
    small | form("({} % {})", small, small) | form("len({})", texts) | st.just("len(l)"),
    lambda inner: (
        form("({} {} {})", inner, st.sampled_from("+-*/"), inner)
        | form("(-{})", inner)
        | form("abs({})", inner)
        | form("float({})", inner)
        | form("({} if b else {})", inner, inner)
    ),
    max_leaves=4,
)
comparison = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
member = st.sampled_from(["in", "not in"])
patterns = st.sampled_from(["a", "^a", "b$", "[aA]b?", r"\.", "", "É|é", "a.b"]).map(repr)
conditions = st.recursive(
    st.sampled_from(["b", "True", "False"])
    | form("{} {} {}", numbers, comparison, numbers)
    | form("{} % {} {} {}", small, small, comparison, small)
    | form("{} {} {} {} {}", numbers, comparison, numbers, comparison, numbers)
    | form("{} {} {}", texts, comparison, texts)
    | form("{} {} {}", st.sampled_from("iu"), member, st.lists(st.integers(-9, 300)).map(str))
    | form("{} {} {}", texts, member, st.lists(LETTERS, max_size=3).map(str))
    | form("{} {} {}", texts, member, st.lists(LETTERS | st.none(), min_size=1).map(str))
    | form("{} {} None", numbers | texts | st.just("l"), st.sampled_from(["is", "is not"]))
    | form("startswith({}, {})", texts, LETTERS.map(repr))
    | form("endswith({}, {})", texts, LETTERS.map(repr))
    | form("contains({}, {})", texts, LETTERS.map(repr))
    | form("matches({}, {})", texts, patterns),
    lambda inner: (
        form("({} and {})", inner, inner)
        | form("({} or {})", inner, inner)
        | form("(not {})", inner)
        | form("({}) == ({})", inner, inner)
    ),
    max_leaves=5,
)

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.Mod: operator.mod},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt},
    **{ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
}
PYTHON_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"len": len, "abs": abs, "lower": str.lower, "upper": str.upper, "float": float},
    **{"startswith": str.startswith, "endswith": str.endswith},
    "contains": operator.contains,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}


def python(node: ast.expr, row: Row) -> Any:
    """Evaluate an expression for a row in Python, with None as SQL null."""
    match node:
        case ast.Constant(value=value):
            return value
        case (
            ast.Name(id=name)
            | ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))])
        ):
            return row[name]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _unless_null(PYTHON_FUNCTIONS[name], *(python(part, row) for part in arguments))
        case ast.UnaryOp(op=op, operand=operand):
            function = operator.not_ if isinstance(op, ast.Not) else operator.neg
            return _unless_null(function, python(operand, row))
        case ast.BinOp(left=left, op=op, right=right):
            divided = isinstance(op, ast.Div | ast.Mod) and python(right, row) == 0
            values = (None,) if divided else (python(left, row), python(right, row))
            return _unless_null(OPERATORS[type(op)], *values)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return python(body if python(test, row) else orelse, row)
        case ast.BoolOp(op=op, values=parts):
            return _decide([python(part, row) for part in parts], isinstance(op, ast.Or))
        case ast.Compare(left=left, ops=ops, comparators=rights):
            pairs = zip([left, *rights[:-1]], ops, rights, strict=True)
            return _decide([_compare(*pair, row) for pair in pairs], False)
    raise AssertionError(ast.dump(node))


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr, row: Row) -> bool | None:
    value = python(left, row)
    if isinstance(op, ast.Is | ast.IsNot):
        return (value is None) == isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn):
        listed = ast.literal_eval(right)
        if value is None and None not in listed:
            return None
        return (value in listed) == isinstance(op, ast.In)
    return _unless_null(OPERATORS[type(op)], value, python(right, row))


def _unless_null(function: Callable[..., Any], *values: Any) -> Any:
    return None if None in values else function(*values)


def _decide(values: list[bool | None], decisive: bool) -> bool | None:
    """Return the SQL `or` (decisive True) or `and` (decisive False) of values that may be null."""
    if decisive in values:
        return decisive
    return None if None in values else not decisive


@settings(max_examples=examples(200), deadline=None)
@given(expression=conditions, rows=st.lists(RANDOM_ROWS, min_size=1, max_size=6))
def test_filter_agrees_with_python(expression: str, rows: list[Row]) -> None:
    tree = ast.parse(expression, mode="eval").body
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assume(names & {"col", *RANDOM_SCHEMA.names})
    kept = Filter("step", expression).mask(pa.Table.from_pylist(rows, RANDOM_SCHEMA)).to_pylist()
    assert kept == [python(tree, row) is True for row in rows]
