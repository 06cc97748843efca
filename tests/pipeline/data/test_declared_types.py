"""Texts are cast to declared types: each value exactly, or its row is a misfit."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline import declared_types
from batchinference.pipeline.declared_types import arrow_type, cast_column, cast_texts
from batchinference.pipeline.type_widening import exact_cast
from batchinference.spec.column_types import INTEGERS, parse_type

FITTING: dict[str, dict[str, Any]] = {
    "bool": {"true": True, "False": False, "1": True},
    "int64": {"-9223372036854775808": -(2**63), "007": 7},
    "uint64": {"18446744073709551615": 2**64 - 1},
    "float64": {"1.5": 1.5, "9007199254740992": 2.0**53, "1e20": 1e20, "-inf": float("-inf")},
    "string": {"007": "007", "": ""},
    "date": {"2024-02-29": date(2024, 2, 29)},
    "timestamp": {
        "2024-01-02T03:04:05.000006": datetime.fromisoformat("2024-01-02T03:04:05.000006")
    },
    "timestamp<UTC>": {"2024-01-02T03:00:00+02:00": datetime(2024, 1, 2, 1, tzinfo=UTC)},
    "decimal<20, 2>": {"123456789012345678.90": Decimal("123456789012345678.90")},
    "list<int64>": {"[1, null]": [1, None]},
    "struct<a: decimal<4, 3>>": {'{"a": 1.500}': {"a": Decimal("1.500")}},
    "json": {'{"b": 1.50, "a": [1]}': '{"b": 1.50, "a": [1]}', '"text"': '"text"'},
}
MISFITS = {
    "bool": ["yes", ""],
    "int8": ["128"],
    "int64": ["1.0", "x", "9223372036854775808"],
    "uint64": ["-1"],
    "float32": ["16777217", "1e39"],
    "float64": ["9007199254740993", "1e400", "1,5"],
    "date": ["2024-02-30", "2024-01-01T00:00:00"],
    "timestamp": ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.1234567"],
    "timestamp<UTC>": ["2024-01-01T00:00:00"],
    "decimal<4, 2>": ["1.005", "100.00"],
    "list<int64>": ["1", "[1.5]", "[1"],
    "list<float64>": ["[9007199254740993]", "[1e400]"],
    "struct<a: string>": ['{"a": 1}', '{"a": "x", "a": "y"}', '{"b": "x"}'],
    "list<struct<a: struct<b: int64>>>": ['[{"a": {"c": 1}}]'],
    "json": ["text", "{", '{"a": 1} 2'],
}


@pytest.mark.parametrize("declared", FITTING)
def test_text_becomes_a_value_of_the_declared_type(declared: str) -> None:
    texts = pa.chunked_array([[*FITTING[declared], None]], pa.string())
    column, misfits = cast_texts(texts, parse_type(declared))
    assert column.to_pylist() == [*FITTING[declared].values(), None]
    assert column.type == arrow_type(parse_type(declared))
    assert not misfits.any()


@pytest.mark.parametrize("declared", MISFITS)
def test_value_that_a_type_cannot_hold_is_the_only_misfit(declared: str) -> None:
    texts = pa.chunked_array([[None, *MISFITS[declared], None]], pa.string())
    column, misfits = cast_texts(texts, parse_type(declared))
    assert misfits.tolist() == [False, *(True for _ in MISFITS[declared]), False]
    assert (column.null_count, column.type) == (len(texts), arrow_type(parse_type(declared)))


NAN, INF = float("nan"), float("inf")
KEPT: list[tuple[pa.Array, str, list[Any]]] = [
    (pa.array([0.5, 2.0**20, NAN, INF, None]), "float32", [0.5, 2.0**20, NAN, INF, None]),
    (pa.array([1.5, NAN], pa.float32()), "float64", [1.5, NAN]),
    (pa.array([Decimal(1), None], pa.decimal128(38, 0)), "int64", [1, None]),
    (pa.array([Decimal("1.10")]), "float64", [1.1]),
    (pa.array([1.25, 1.1]), "decimal<10, 2>", [Decimal("1.25"), Decimal("1.10")]),
    (pa.array([0, 1]), "bool", [False, True]),
    (pa.array([datetime(2024, 1, 1)]), "date", [date(2024, 1, 1)]),  # noqa: DTZ001 - no zone
    (pa.array([date(2024, 1, 1)]), "timestamp", [datetime(2024, 1, 1)]),  # noqa: DTZ001 - no zone
    (pa.array([{"x": 1}]), "struct<x: float64, y: string>", [{"x": 1.0, "y": None}]),
    (pa.array(["7", None]).dictionary_encode(), "int64", [7, None]),
]
CHANGED: list[tuple[Any, str]] = [
    (1e300, "float32"), (16777217.0, "float32"), ([1e300], "list<float32>"),
    (2**53 + 1, "float64"), (Decimal("12345678901234567890.12"), "float64"),
    (1.25, "decimal<10, 1>"), (1.5, "int64"), (5, "bool"), (0.5, "bool"), ([5], "list<bool>"),
    (["1e400"], "list<float64>"), (5, "date"), (1704103200, "timestamp"), (1.5, "timestamp"),
    (datetime(2024, 1, 1, 10), "date"),  # noqa: DTZ001 - no zone
    (date(2024, 1, 1), "timestamp<Europe/Berlin>"),
    ([datetime(2024, 1, 1)], "list<timestamp<UTC>>"),  # noqa: DTZ001 - no zone
    ({"x": 1, "y": 2}, "struct<x: int64>"), ([{"x": {"y": 2}}], "list<struct<x: struct<z: int8>>>"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "declared", "expected"), KEPT)
def test_column_is_cast_without_a_change(array: pa.Array, declared: str, expected: Any) -> None:
    cast = cast_column(pa.chunked_array([array]), parse_type(declared))
    assert cast.type == arrow_type(parse_type(declared))
    assert repr(cast.to_pylist()) == repr(expected)


@pytest.mark.parametrize(("value", "declared"), CHANGED)
def test_column_with_a_value_that_a_cast_would_change_is_rejected(
    value: Any, declared: str
) -> None:
    with pytest.raises((ValueError, NotImplementedError)):
        cast_column(pa.chunked_array([[value]]), parse_type(declared))


def test_cast_names_a_field_that_the_type_lacks() -> None:
    for column in (pa.array([{"x": 1, "year": 2}]), pa.array(['{"x": 1, "year": 2}'])):
        with pytest.raises(ValueError, match="'year'"):
            cast_column(pa.chunked_array([column]), {"x": "int64"})


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.float32()), pa.null()])
def test_types_of_files_are_widened_for_maps_and_nulls(kind: pa.DataType) -> None:
    wide = pa.map_(pa.string(), pa.float64())
    column = pa.chunked_array([pa.array([None, None, None], kind)]).slice(1)
    assert exact_cast(column, wide).to_pylist() == [None, None]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_cast_up_to_the_limits_of_their_type(name: str) -> None:
    limits = declared_types._RANGES[name]
    values = [limits.start - 1, limits.start, limits.stop - 1, limits.stop]
    column, misfits = cast_texts(pa.chunked_array([list(map(str, values))]), name)
    assert misfits.tolist() == [True, False, False, True]
    assert column.to_pylist()[1:3] == values[1:3]


def test_misfits_are_isolated_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(texts: pa.Array, kind: pa.DataType) -> pa.Array:
        calls.append(len(texts))
        return texts.cast(kind)

    monkeypatch.setattr(declared_types, "_cast", counted)
    texts = pa.chunked_array([["1"] * 1000 + ["bad"] + ["2"] * 3095, ["3"]])
    column, misfits = cast_texts(texts, "int64")
    assert misfits.nonzero()[0].tolist() == [1000]
    assert (column[999].as_py(), column[4096].as_py()) == (1, 3)
    assert len(calls) == 1 + 2 * 12 + 1
