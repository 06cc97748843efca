"""Widening of column types: independent of order, and no value is changed."""

from __future__ import annotations

import math
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

from batchinference.pipeline.type_widening import (
    TENSORS,
    TypeMismatch,
    cast_to,
    is_tensor,
    unify_field,
    unify_schemas,
    unify_types,
)
from support.tiers import examples

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(),
            pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]  # fmt: skip
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(5, 2), pa.decimal128(10, 0), pa.decimal128(38, 10), pa.decimal256(60, 30)]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
TIMES = [pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.duration("s"),
         pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC"),
         pa.timestamp("ms", "UTC")]  # fmt: skip
SCALARS = st.sampled_from([pa.null(), pa.bool_(), *INTEGERS, *FLOATS, *DECIMALS, *TEXTS, *TIMES])


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3)
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        fields.map(lambda found: pa.struct(list(found.items()))),
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
    family = st.sampled_from(draw(st.sampled_from([[*INTEGERS, *FLOATS, *DECIMALS], TEXTS, TIMES])))
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
        least = 0 if pa.types.is_unsigned_integer(kind) else -(1 << bits)
        return st.integers(least, (1 << bits) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_decimal(kind):
        most = 10 ** min(kind.precision, 28) - 1
        return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale))
    if kind in TEXTS:
        text = st.text(max_size=5)
        return text if "string" in str(kind) else text.map(str.encode)
    return st.nothing()


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, pa.DataType, list[Any]]:
    """Draw two types of which the first has values, and some of them; maybe in lists."""
    kind = draw(st.sampled_from([*INTEGERS, *FLOATS, *DECIMALS, *TEXTS]))
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
        found = pa.array(values, kind).cast(wider).to_pylist()
    except pa.ArrowInvalid:
        assert set(map(str, (kind, other))) != {"null"}
        assert "int" in str(kind) or "decimal" in str(kind)
        return
    survived(values, found)


def survived(value: Any, new: Any) -> None:
    if isinstance(value, list):
        for inner, other in zip(value, new, strict=True):
            survived(inner, other)
    elif isinstance(value, str) and isinstance(new, bytes):
        assert new.decode() == value
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
    assert unify_types(tensor, ArrowTensorTypeV2((2,), pa.float64())) is None
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
    found = cast_to(table, schema)
    assert found.to_pydict() == {"a": [None], "b": [1.0], "other": ["x"]}
    assert found.schema.field("b").type == pa.float64()
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
    assert not any(map(is_tensor, [pa.int8(), pa.list_(pa.int8()), pa.uuid()]))
