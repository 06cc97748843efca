"""Texts are cast to declared types: each value exactly, or its row is a misfit."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline import column_types
from batchinference.pipeline.column_types import arrow_type, cast_texts
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
    "struct<a: decimal<4, 3>>": {'{"a": 1.500, "b": 2}': {"a": Decimal("1.500")}},
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
    "struct<a: string>": ['{"a": 1}', '{"a": "x", "a": "y"}'],
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


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_cast_up_to_the_limits_of_their_type(name: str) -> None:
    limits = column_types._RANGES[name]
    values = [limits.start - 1, limits.start, limits.stop - 1, limits.stop]
    column, misfits = cast_texts(pa.chunked_array([list(map(str, values))]), name)
    assert misfits.tolist() == [True, False, False, True]
    assert column.to_pylist()[1:3] == values[1:3]


def test_misfits_are_isolated_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(texts: pa.Array, kind: pa.DataType) -> pa.Array:
        calls.append(len(texts))
        return texts.cast(kind)

    monkeypatch.setattr(column_types, "_cast", counted)
    texts = pa.chunked_array([["1"] * 1000 + ["bad"] + ["2"] * 3095, ["3"]])
    column, misfits = cast_texts(texts, "int64")
    assert misfits.nonzero()[0].tolist() == [1000]
    assert (column[999].as_py(), column[4096].as_py()) == (1, 3)
    assert len(calls) == 1 + 2 * 12 + 1
