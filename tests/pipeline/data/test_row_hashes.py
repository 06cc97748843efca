"""Rows have the same hash if, and only if, their names, types and bits are equal."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.row_hashes import HASH_BYTES, row_hashes
from support.tiers import examples

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-2, 2)),
    (pa.float64(), st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")])),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.sampled_from(["", "a", "b", "ab", "é", "e\u0301", "\0"])),
    (pa.binary(), st.sampled_from([b"", b"a", b"\0", b"\1\0"])),
    (pa.binary(2), st.sampled_from([b"ab", b"\0\0"])),
    (pa.decimal128(4, 2), st.sampled_from([Decimal("0.00"), Decimal("1.50")])),
    (pa.date32(), st.sampled_from([date(2020, 1, 1), date(1960, 1, 1)])),
    (pa.duration("s"), st.sampled_from([timedelta(0), timedelta(1)])),
    (pa.null(), st.none()),
]
Column = tuple[pa.DataType, list[Any]]


def nested(column: tuple[pa.DataType, Any]) -> st.SearchStrategy[Any]:
    kind, values = column
    values = st.none() | values
    return st.sampled_from([
        (pa.list_(kind), st.lists(values, max_size=2)),
        (pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)),
        (pa.struct([("x", kind), ("y", pa.string())]),
         st.fixed_dictionaries({"x": values, "y": st.sampled_from(["", "a"])})),
        (pa.map_(pa.string(), kind),
         st.lists(st.tuples(st.sampled_from("ab"), values), max_size=2)),
    ])  # fmt: skip


TYPES = st.recursive(st.sampled_from(SCALARS), lambda kinds: kinds.flatmap(nested), max_leaves=3)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind, values = draw(TYPES)
    return pa.array(draw(st.lists(st.none() | values, min_size=1, max_size=6)), kind)


def hashes(*values: pa.Array | pa.ChunkedArray) -> list[bytes]:
    return row_hashes(pa.table({str(at): column for at, column in enumerate(values)}))


def exact(value: Any) -> str:
    return repr(value)  # shows the sign of 0, and types


@settings(max_examples=examples(1500, 60), deadline=None)
@given(columns())
def test_equal_values_and_no_others_have_the_same_hash(column: pa.Array) -> None:
    found = hashes(column)
    assert all(len(each) == HASH_BYTES for each in found)
    texts = [exact(value) for value in column.to_pylist()]
    for one, text in zip(found, texts, strict=True):
        same = [other == one for other in found]
        assert same == [other == text for other in texts]


@settings(max_examples=examples(1500, 60), deadline=None)
@given(columns(), st.data())
def test_hash_does_not_depend_on_how_arrow_stores_the_rows(
    column: pa.Array, data: st.DataObject
) -> None:
    found = hashes(column)
    start = data.draw(st.integers(0, len(column) - 1))
    assert hashes(column.slice(start)) == found[start:]
    assert hashes(pa.chunked_array([column.slice(0, start), column.slice(start)])) == found
    padded = pa.concat_arrays([column, column.take(pa.array([None, 0], pa.int64())), column])
    assert hashes(padded.slice(len(column) + 2)) == found
    if not pa.types.is_nested(column.type) and not pa.types.is_null(column.type):
        assert hashes(column.dictionary_encode()) == found
    if pa.types.is_string(column.type):
        assert hashes(column.cast(pa.large_string())) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1]), pa.array([1], pa.int32())),
        (pa.array([1]), pa.array([1.0])),
        (pa.array([True]), pa.array([1], pa.uint8())),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([None], pa.string()), pa.array([""])),
        (pa.array([None], pa.string()), pa.array([None], pa.int64())),
        (pa.array([0], pa.timestamp("s")), pa.array([0], pa.timestamp("ms"))),
        (pa.array([0], pa.timestamp("s")), pa.array([0], pa.timestamp("s", "UTC"))),
        (pa.array([{"x": 1}]), pa.array([{"y": 1}])),
        (pa.array([[1, 2]]), pa.array([[1, 2]], pa.list_(pa.int32()))),
        (to_column(np.zeros((1, 2, 3))), to_column(np.zeros((1, 3, 2)))),
        (to_column(np.zeros((1, 2), np.uint8)), to_column(np.zeros((1, 2), np.int8))),
    ],
)
def test_values_of_other_types_have_another_hash(one: Any, other: Any) -> None:
    assert hashes(one) != hashes(other)


def test_values_do_not_move_between_columns() -> None:
    one = pa.array(["ab", "a", "", "abc"])
    other = pa.array(["c", "bc", "abc", ""])
    assert len(set(hashes(one, other))) == 4
    assert row_hashes(pa.table({"a": one})) != row_hashes(pa.table({"b": one}))
    assert len(set(hashes(pa.array([["a", "b"], ["ab"], ["a,b"], ["", "a", "b"]])))) == 4


def test_image_has_the_same_hash_among_images_of_other_shapes() -> None:
    image, other = np.arange(12).reshape(2, 2, 3), np.zeros((1, 2, 3), np.int64)
    (alone,) = hashes(to_column([image]))
    assert hashes(to_column([other, image]))[1] == alone
    assert hashes(to_column([image + 1]))[0] != alone


def test_hash_is_the_same_in_other_processes() -> None:
    code = (
        "import pyarrow as pa; from batchinference.pipeline.row_hashes import row_hashes;"
        "print(row_hashes(pa.table({'0': ['a']}))[0].hex())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout.strip() == hashes(pa.array(["a"]))[0].hex()


_TIME = pa.time64("ns")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (_TIME, [1, 2, 2, None]),
        (pa.list_(_TIME), [[1], [2], [2], []]),
        (pa.list_(_TIME, 1), [[1], [2], [2], [None]]),
        (pa.large_list(pa.struct([("a", _TIME)])), [[{"a": n}] for n in (1, 2, 2, 3)]),
        (pa.map_(pa.string(), pa.list_(_TIME)), [[("a", [n])] for n in (1, 2, 2, 3)]),
    ],
)
def test_nanoseconds_of_times_count(kind: pa.DataType, values: list[Any]) -> None:
    one, two, same, other = hashes(pa.array(values, kind))
    assert two == same
    assert len({one, two, other}) == 3
