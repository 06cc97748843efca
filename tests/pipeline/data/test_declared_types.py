"""Casts to declared types and widening of types: each value exactly, or its row is a misfit."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ray.data.extensions import (
    ArrowTensorType,
    ArrowTensorTypeV2,
    ArrowVariableShapedTensorType,
    get_arrow_extension_tensor_types,
)

from batchinference.pipeline import declared_types
from batchinference.pipeline.declared_types import arrow_type, cast_column, cast_texts
from batchinference.pipeline.type_widening import (
    EXTENSION_NAME,
    TENSORS,
    TypeMismatch,
    cast_to,
    exact_cast,
    is_tensor,
    register_tensors,
    unify_field,
    unify_schemas,
    unify_types,
)
from batchinference.spec.column_types import INTEGERS, parse_type
from support.calls import counted
from support.tiers import examples

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
    "decimal<4, 2>": [
        "1.005",
        "100.00",
        "1e-77",
        f"0.{'0' * 60}1",
        f"1.{'0' * 1000}",
        "1e-99999999",
    ],
    "decimal<60, 2>": ["1e-99", "1e-99999999"],
    "list<decimal<4, 2>>": ["[1e-77]", "[1e-99999999]", "[1e-9999999999999999999]"],
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
    (pa.array([Decimal("99.99")]), "float64", [99.99]),
    (pa.array([{"x": [Decimal("99.99")]}]), "struct<x: list<float64>>", [{"x": [99.99]}]),
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
    (["1e400"], "list<float64>"), ([{"x": ["1e-77"]}], "list<struct<x: list<decimal<4, 2>>>>"),
    ([{"x": "1e-99999999"}], "list<struct<x: decimal<4, 2>>>"),
    (5, "date"), (1704103200, "timestamp"), (1.5, "timestamp"),
    (datetime(2024, 1, 1, 10), "date"),  # noqa: DTZ001 - no zone
    (date(2024, 1, 1), "timestamp<Europe/Berlin>"),
    ([datetime(2024, 1, 1)], "list<timestamp<UTC>>"),  # noqa: DTZ001 - no zone
    ({"x": 1, "y": 2}, "struct<x: int64>"), ([{"x": {"y": 2}}], "list<struct<x: struct<z: int8>>>"),
    (pa.nulls(1, pa.struct({"x": pa.list_(pa.uuid())})), "struct<x: list<string>>"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "declared", "expected"), KEPT)
def test_column_is_cast_without_a_change(array: pa.Array, declared: str, expected: Any) -> None:
    cast = cast_column(pa.chunked_array([array]), parse_type(declared))
    assert cast.type == arrow_type(parse_type(declared))
    assert repr(cast.to_pylist()) == repr(expected)


@pytest.mark.parametrize(("value", "declared"), CHANGED)
def test_column_with_value_that_a_cast_would_change_is_rejected(value: Any, declared: str) -> None:
    array = value if isinstance(value, pa.Array) else pa.array([value])
    with pytest.raises((ValueError, NotImplementedError)):
        cast_column(pa.chunked_array([array]), parse_type(declared))


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


def test_misfits_are_isolated_by_halving() -> None:
    texts = pa.chunked_array([["1"] * 1000 + ["bad"] + ["2"] * 3095, ["3"]])
    with counted(declared_types, "_cast") as calls:
        column, misfits = cast_texts(texts, "int64")
    assert misfits.nonzero()[0].tolist() == [1000]
    assert (column[999].as_py(), column[4096].as_py()) == (1, 3)
    assert calls.call_count == 1 + 2 * 12 + 1


INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(),
            pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]  # fmt: skip
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(5, 2), pa.decimal128(10, 0), pa.decimal128(38, 10), pa.decimal256(60, 30)]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
TIMES = [pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.duration("s"),
         pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC"),
         pa.timestamp("ms", "UTC")]  # fmt: skip
SCALARS = st.sampled_from([pa.null(), pa.bool_(), *INTS, *FLOATS, *DECIMALS, *TEXTS, *TIMES])


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        fields.map(lambda result: pa.struct(list(result.items()))),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    )


TYPES = st.recursive(SCALARS, nested, max_leaves=3)
MANY = settings(max_examples=examples(300), deadline=None)


def ordered(kind: pa.DataType | None) -> str:
    """Return a type as text, with the fields of structs in alphabetical order."""
    if kind is not None and pa.types.is_struct(kind):
        return str(sorted((field.name, ordered(field.type)) for field in kind))
    if kind is not None and kind.num_fields:
        inner = [ordered(kind.field(number).type) for number in range(kind.num_fields)]
        return f"{kind.id} {getattr(kind, 'list_size', '')} {inner}"
    return str(kind)


@MANY
@given(TYPES, TYPES)
def test_widening_does_not_depend_on_the_order(one: pa.DataType, other: pa.DataType) -> None:
    assert ordered(unify_types(one, other)) == ordered(unify_types(other, one))
    assert unify_types(one, one) == one


@st.composite
def related(draw: st.DrawFn) -> list[pa.DataType]:
    """Draw three types of which many can be widened to one."""
    family = st.sampled_from(draw(st.sampled_from([[*INTS, *FLOATS, *DECIMALS], TEXTS, TIMES])))
    three = draw(st.tuples(family, family, family))
    shape = draw(st.sampled_from([lambda kind, _: kind, in_a_list, in_a_struct]))
    return [shape(kind, number) for number, kind in enumerate(three)]


def in_a_list(kind: pa.DataType, number: int) -> pa.DataType:
    return [pa.list_(kind), pa.large_list(kind), pa.list_(kind, 2)][number]


def in_a_struct(kind: pa.DataType, number: int) -> pa.DataType:
    return pa.struct({"a": kind, "bc"[number % 2]: kind})


@MANY
@given(related())
def test_widening_does_not_depend_on_the_grouping(types: list[pa.DataType]) -> None:
    one, other, third = types
    left, right = unify_types(one, other), unify_types(other, third)
    if left is None or right is None:
        return
    assert ordered(unify_types(left, third)) == ordered(unify_types(one, right))


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        bits = kind.bit_width - (0 if pa.types.is_unsigned_integer(kind) else 1)
        minimum = 0 if pa.types.is_unsigned_integer(kind) else -(1 << bits)
        return st.integers(minimum, (1 << bits) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_decimal(kind):
        limit = 10 ** min(kind.precision, 28) - 1
        return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-kind.scale))
    if kind in TEXTS:
        text = st.text(max_size=5)
        return text if "string" in str(kind) else text.map(str.encode)
    return st.nothing()


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, pa.DataType, list[Any]]:
    """Draw two types of which the first has values, and some of them; maybe in lists."""
    kind = draw(st.sampled_from([*INTS, *FLOATS, *DECIMALS, *TEXTS]))
    values = draw(st.lists(values_of(kind), min_size=1, max_size=5))
    other = draw(SCALARS)
    if draw(st.booleans()):
        return pa.list_(kind), pa.large_list(other), [values]
    return kind, other, values


@settings(max_examples=examples(500), deadline=None)
@given(columns())
def test_every_value_survives(case: tuple[pa.DataType, pa.DataType, list[Any]]) -> None:
    """Or the cast raises, so that no value changes unnoticed."""
    kind, other, values = case
    wider = unify_types(kind, other)
    assume(wider is not None)
    try:
        result = pa.array(values, kind).cast(wider).to_pylist()
    except pa.ArrowInvalid:
        assert set(map(str, (kind, other))) != {"null"}
        assert "int" in str(kind) or "decimal" in str(kind)
        return
    survived(values, result)


def survived(value: Any, new: Any) -> None:
    if isinstance(value, list):
        for inner, other in zip(value, new, strict=True):
            survived(inner, other)
    elif isinstance(value, Decimal) and isinstance(new, float):
        assert math.isclose(new, float(value))
    else:
        assert new == value


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int64(), pa.uint64(), pa.uint64()),
        (pa.int8(), pa.float16(), pa.float64()),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.int8(), pa.decimal128(5, 2), pa.decimal128(22, 2)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
        (pa.decimal256(76, 0), pa.decimal128(38, 10), None),
        (pa.decimal128(5, 2), pa.float32(), pa.float64()),
        (pa.string(), pa.int64(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.int64(), pa.list_(pa.int64()), None),
        (pa.int64(), pa.struct({"a": pa.int64()}), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.int8()), None),
        (pa.dictionary(pa.int8(), pa.int8()), pa.dictionary(pa.int32(), pa.int8()), pa.int8()),
        (pa.string_view(), pa.string(), pa.string()),
        (pa.string_view(), pa.large_string(), pa.large_string()),
        (pa.binary_view(), pa.binary(), pa.binary()),
        *((kind, pa.binary(), None) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
        (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.string()}),
         pa.struct({"a": pa.int8(), "b": pa.string()})),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.string()}), None),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32()),
         pa.map_(pa.string(), pa.int32())),
    ])  # fmt: skip
def test_wider_types(one: pa.DataType, other: pa.DataType, expected: pa.DataType | None) -> None:
    assert unify_types(one, other) == expected


def test_tensors_have_no_type_in_common_with_others() -> None:
    tensor = ArrowTensorTypeV2((2,), pa.int64())
    assert unify_types(tensor, pa.list_(pa.int64())) is None
    for other in (ArrowTensorTypeV2((2,), pa.float64()), ArrowTensorTypeV2((1, 2), pa.int64())):
        assert unify_types(tensor, other) is None
    assert unify_types(tensor, ArrowTensorTypeV2((3,), pa.int64())) is not None
    assert unify_types(tensor, pa.null()) == tensor


def test_schemas_are_unified() -> None:
    one = pa.schema([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.null())])
    other = pa.schema([pa.field("b", pa.string()), pa.field("a", pa.int64())])
    with pytest.raises(TypeMismatch, match="column 'a' is int8 and int64"):
        unify_schemas([one, other])
    unified = unify_schemas([one.remove(1), one.remove(0), other.remove(1)])
    assert unified == pa.schema([one.field("a"), other.field("b")])
    assert unify_field([one.field("a"), pa.field("a", pa.string())]) is None


def test_table_is_cast_to_a_schema() -> None:
    table = pa.table({"other": ["x"], "b": pa.array([1], pa.int8())})
    schema = pa.schema({"a": pa.string(), "b": pa.float64()})
    cast = cast_to(table, schema)
    assert cast.to_pydict() == {"a": [None], "b": [1.0], "other": ["x"]}
    assert cast.schema.field("b").type == pa.float64()
    with pytest.raises(TypeMismatch, match="column 'b' is int16 and int8: Integer value 300 not"):
        cast_to(pa.table({"b": pa.array([300], pa.int16())}), pa.schema({"b": pa.int8()}))


def test_tensors_are_the_types_that_ray_takes_for_tensors() -> None:
    kinds = [
        *(ArrowTensorType((2, 3), pa.int8()), ArrowTensorTypeV2((2, 3), pa.int8())),
        *(ArrowVariableShapedTensorType(pa.int8(), 2), pa.fixed_shape_tensor(pa.int8(), (2, 3))),
    ]
    assert set(map(type, kinds)) == set(get_arrow_extension_tensor_types())
    assert {kind.extension_name for kind in kinds} == TENSORS
    assert all(map(is_tensor, kinds))
    unknown = pa.field("x", pa.int8(), metadata={EXTENSION_NAME: min(TENSORS)})
    assert register_tensors(pa.schema({"a": pa.list_(pa.struct([unknown]))}))
    assert not any(map(is_tensor, [pa.int8(), pa.list_(pa.int8()), pa.uuid()]))
