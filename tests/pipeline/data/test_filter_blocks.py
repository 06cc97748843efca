"""Filters over blocks: the result of a row does not depend on other rows of its block."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.steps.rows import Filter
from support.tiers import examples

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
    for place, name in enumerate(SCHEMA.names):
        if table.column(name).null_count == len(rows):
            table = table.set_column(place, name, pa.nulls(len(rows)))
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
        whole = Filter("step", expression).mask(pa.Table.from_pylist(rows, SCHEMA)).to_pylist()
        by_part = [kept for part in parts for kept in step.mask(block(part)).to_pylist()]
        by_row = [kept for row in rows for kept in step.mask(block([row])).to_pylist()]
        if not whole == by_part == by_row:
            wrong.append((expression, whole, by_part, by_row))
    assert wrong == []


def test_block_of_nulls_is_filtered_like_typed_nulls() -> None:
    nulls = [dict.fromkeys(SCHEMA.names)] * 2
    typed = pa.Table.from_pylist(nulls, SCHEMA)
    wrong = [
        expression
        for expression in EXPRESSIONS
        if Filter("step", expression).mask(block(nulls)).to_pylist()
        != Filter("step", expression).mask(typed).to_pylist()
    ]
    assert wrong == []
