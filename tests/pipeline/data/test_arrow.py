"""Blocks, and the Ray Data internals that the pipeline uses and a new Ray version must keep."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from ray.data.block import BlockAccessor
from ray.data.extensions import get_arrow_extension_tensor_types

import batchinference.pipeline.execution.dataset  # noqa: F401 - prepares the blocks that Ray joins
from batchinference.pipeline import arrow
from batchinference.pipeline.arrow import concat, tensors_to_lists, to_batch, to_column, to_table
from batchinference.pipeline.errors import JobFailure

COLUMNS = [
    *([None, 1], [1.5, None], [True, None], ["a", None], [b"a"], [None], [[1], None], [{"a": 1}]),
    *([datetime(2024, 1, 2, tzinfo=UTC), None], [timedelta(1), None], [Decimal("1.5"), None]),
]


def test_concat_keeps_the_order_and_fills_missing_columns() -> None:
    tables = [pa.table({"a": [number, number + 1]}) for number in (5, 1, 3)]
    assert concat(tables).column("a").to_pylist() == [5, 6, 1, 2, 3, 4]
    assert concat(tables[:1]) is tables[0]
    joined = concat([pa.table({"a": [1]}), pa.table({"b": ["x"]}), pa.table({"a": [2]})])
    assert joined.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": None}]


def test_concat_widens_types_and_keeps_values_also_in_blocks_of_ray() -> None:
    views = pa.list_view(pa.int64())
    for one, other, joined in [
        (pa.array([1], pa.int32()), [2], pa.array([1, 2])),
        ([None], pa.array(["x"], pa.large_string()), pa.array([None, "x"], pa.large_string())),
        ([[]], [[1]], pa.array([[], [1]])),
        ([1], pa.array([2**64 - 1], pa.uint64()), pa.array([1, 2**64 - 1], pa.uint64())),
        (pa.array([5], pa.uint64()), [-3], pa.array([5, -3])),
        (pa.array([], pa.uint64()), [-3], pa.array([-3])),
        (pa.array([[5]], pa.list_(pa.uint64())), [[-3]], pa.array([[5], [-3]])),
        ([None], pa.array([[1]], views), pa.array([None, [1]], views)),
        ([[2], None], pa.array([[1]], views), pa.array([[2], None, [1]])),
        ([Decimal("99.99")], [0.5], pa.array([99.99, 0.5])),
        ([{"x": 1}, None], [{"y": "z"}], pa.array([{"x": 1}, None, {"y": "z"}])),
    ]:
        blocks = [pa.table({"a": values}) for values in (one, other)]
        of_ray = BlockAccessor.for_block(blocks[0]).builder()
        for block in blocks:
            of_ray.add_block(block)
        assert concat(blocks) == of_ray.build() == pa.table({"a": joined})
    of_ray.add_block(pa.table({"a": ["x"]}))
    for blocks in ([["x"], [b"y"]], [pa.array(["x"], pa.string_view()), [b"y"]]):
        with pytest.raises(JobFailure, match=r"column 'a' is string.* and binary"):
            concat([pa.table({"a": block}) for block in blocks])
    with pytest.raises(JobFailure, match="column 'a'") as failure:
        of_ray.build()
    assert pickle.loads(pickle.dumps(failure.value)).message == failure.value.message


@pytest.mark.parametrize(
    "values",
    [np.arange(12.0).reshape(2, 3, 2), [np.zeros((2, 2), np.uint8), np.ones((3, 2), np.uint8)]],
)
def test_concat_keeps_tensors_next_to_null_rows(values: np.ndarray | list[np.ndarray]) -> None:
    table = pa.table({"t": to_column(values), "good": [True, True]})
    joined = concat([table, pa.table({"good": [False]}), table])
    assert joined.column("t").null_count == 1
    restored = to_batch(joined.filter(joined.column("good")))["t"]
    assert [*map(np.array_equal, restored, [*values, *values])] == 2 * len(values) * [True]


def test_batch_holds_numpy_arrays_with_the_row_first() -> None:
    table = pa.table(
        {
            "number": pa.array([1, 2], pa.int32()),
            "text": ["a", None],
            "flag": [True, False],
            "missing": [1, None],
            "list": [[1, 2], [3]],
            "struct": [{"a": 1}, {"a": 2}],
            "tensor": to_column(np.zeros((2, 4, 3), np.uint8)),
        }
    )
    batch = to_batch(table)
    assert list(batch) == table.column_names
    kinds = {name: (array.dtype.kind, array.shape) for name, array in batch.items()}
    assert kinds == {
        **{"number": ("i", (2,)), "text": ("O", (2,)), "flag": ("b", (2,))},
        **{"missing": ("f", (2,)), "list": ("O", (2,)), "struct": ("O", (2,))},
        "tensor": ("u", (2, 4, 3)),
    }
    assert (np.isnan(batch["missing"][1]), batch["struct"][0]) == (True, {"a": 1})
    assert [*arrow.rows_of(pa.table({"a": [1, 2]}).select([]))] == [{}, {}]
    chunks = pa.chunked_array([[1], [2, 3]])
    assert to_batch(pa.table({"a": chunks}))["a"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("values", COLUMNS, ids=repr)
def test_conversions_without_ray_data_equal_those_of_ray_data(values: list[object]) -> None:
    column = pa.array(values)
    for chunks in ([], [column], [column, column.slice(1)]):
        table = pa.table({"c": pa.chunked_array(chunks, column.type)})
        block = BlockAccessor.for_block(table)
        ours, rays = to_batch(table)["c"], block.to_numpy("c")
        assert (ours.dtype, ours.tolist().__repr__()) == (rays.dtype, rays.tolist().__repr__())
        assert [*arrow.rows_of(table)] == [*block.iter_rows(public_row_format=True)]
    is_time = isinstance(values[0], datetime | timedelta)  # Ray changes Python times
    for given in () if is_time else (values, np.array([*values, None], dtype=object)[:-1]):
        assert to_column(given).equals(to_table({"c": given}).column(0))


def test_to_column_keeps_the_type_of_values() -> None:
    for values, kind in [
        *((values, pa.int64()) for values in ([1, 2], (1, 2), [1, None])),
        *((np.ones(2, kind.to_pandas_dtype()), kind) for kind in (pa.float32(), pa.float16())),
        (["a", "b"], pa.string()),
        (np.array(["a", None], object), pa.string()),
        *(([b"a", b"b"], pa.binary()), ([None, None], pa.null())),
        ([[1], [1, 2]], pa.list_(pa.int64())),
        ([{"a": 1}, {"a": 2}], pa.struct([("a", pa.int64())])),
    ]:
        column = to_column(values)
        assert (column.type, len(column)) == (kind, 2)


def test_to_column_makes_tensors_of_nested_arrays() -> None:
    array = np.arange(12, dtype=np.int16).reshape(2, 3, 2)
    ragged, other = [array[0], array[1][:1]], array.astype(">i2")
    holes = [None, array[0, 0]], [array[0], None], [None, *ragged]
    for values in (array, list(array), ragged, other, [*other], [np.zeros(0), array[1, 0]], *holes):
        column = to_column(values)
        assert isinstance(column.type, get_arrow_extension_tensor_types())
        for result, expected in zip(to_batch(pa.table({"t": column}))["t"], values, strict=True):
            assert result is None or (result.dtype, result.dtype.isnative) == (np.int16, True)
            assert np.array_equal(result, expected)


def test_to_column_returns_arrow_data_unchanged() -> None:
    array = pa.array(["a", "b"]).dictionary_encode()
    for column in (array, pa.chunked_array([array, array])):
        assert to_column(column).equals(pa.chunked_array(getattr(column, "chunks", [column])))


def test_to_column_replaces_views_whose_rows_arrow_cannot_select() -> None:
    for column, values in (
        (pa.array([{"a": "b"}, None], pa.struct([("a", pa.string_view())])), [{"a": "b"}, None]),
        (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["b", None])), ["b", None]),
    ):
        assert to_column(column).take(pa.array([1, 0])).to_pylist() == values[::-1]
    ends, starts, sizes = (pa.array(n, pa.int32()) for n in ([0, 2, 3, 3], [1, 0, 0], [2, 1, 0]))
    mask, order = pa.array([False, False, True]), pa.array([1, 2, 0])
    times = pa.array([1, None, 3]).cast(pa.time64("ns"))
    uuids = pa.uuid().wrap_array(pa.array([bytes(16)] * 3, pa.binary(16)))
    for values in (times, uuids, pa.array(["a", None, "c"], pa.string_view()), pa.nulls(3)):
        views = pa.ListViewArray.from_arrays(starts, sizes, values, mask=mask)
        plain = values.cast(pa.string()) if pa.types.is_string_view(values.type) else values
        plain = pa.ListArray.from_arrays(ends, plain.take(order), mask=mask)
        of_views, of_lists = (
            pa.StructArray.from_arrays([*parts, lists[:2]], [*"abc"])
            for lists in (views, plain)
            for fixed in [pa.FixedSizeListArray.from_arrays(lists[1:], 1)]
            for parts in [(pa.MapArray.from_arrays([0, 1, 3], [*"abc"], lists), fixed)]
        )
        assert to_column(of_views).equals(pa.chunked_array([of_lists]))


NOON = datetime.fromisoformat("2024-01-01T12:00:00")


def test_to_column_keeps_texts_and_times_exactly() -> None:
    assert to_column([pd.NaT, NOON.date()]).to_pylist() == [None, NOON.date()]
    days = np.array([0, 5], "M8[D]")
    units = [np.array([5, "NaT"], f"M8[{unit}]") for unit in ("s", "ns", "us")]
    assert [*map(str, to_column(units)[1].as_py())] == ["1970-01-01T00:00:00.000000005", "NaT"]
    assert to_batch(pa.table({"c": to_column([days, days[1:]])}))["c"][1] == days[1]
    assert to_column([[days.astype("M8[ns]")[:1]]]).to_pylist() == [[[pd.Timestamp(0)]]]
    nano = pd.Timestamp(1_704_067_200_123_456_789)
    for values in (
        *(np.array([b"a\0b", b"c"]), np.array(["a\0b", "c"]), np.array([[b"a\0b", b"c"]])),
        np.array([["a\0b", "c"], ["d", "e"]]),
        *([np.array(["a\0b", "c"])], [np.array([b"a\0b", b"c"])] * 2),
        *([np.array(["a", None], object)] * 2, [np.array([{"a": 1}], object)] * 2),
        *([nano, NOON], [nano.tz_localize("UTC"), None], [pd.Timedelta(1001), timedelta(1)]),
        [NOON.replace(tzinfo=timezone(timedelta(hours=2))), None],
    ):
        table = tensors_to_lists(pa.table({"c": to_column(values)}))
        expected = [one.tolist() if isinstance(one, np.ndarray) else one for one in values]
        assert table.column("c").to_pylist() == expected, values


def test_to_column_rejects_values_that_it_would_change() -> None:
    for one, other in (
        *((NOON.date(), NOON), (b"x", "text"), (NOON, NOON.replace(tzinfo=UTC)), (NOON, 5)),
        *(([pd.Timestamp(1)], [NOON]), ([NOON.date()], [pd.NaT]), (Decimal("NaN"), Decimal(1))),
        *((np.True_, 5), (True, 0.5), (NOON.date(), pd.Timestamp(5))),
        *((np.array([True]), np.array([0.5, 1])), (np.array(["a"]), np.array([b"a"]))),
        *((UUID(int=5), bytes(16)), ([UUID(int=5)], [1]), ([np.float16(1.5)], [1])),
    ):
        lists = ([[one, other]], [[one], [other]], [[[one]], [[other]]])
        for values in ([one, other], [other, one], [{"a": one}, {"a": other}], *lists):
            with pytest.raises(TypeError):
                to_column(values)
    large, half = np.array([2**53 + 1]), np.array([0.5])
    for values in (
        *([large, half], [large, [0.5]], [np.array(True), half[0]], [[2**53 + 1, 0], half]),
        *([large.view("m8[s]"), large], [large.view("M8[ns]"), [0, 5]]),
        *([-large, large.astype(np.uint64) << 10], [half, np.array([True, False])]),
        *([half.view("M8[s]"), half.view("M8[ns]")], [half.view("m8[s]"), half.view("M8[s]")]),
        *([half, half[None]], [[np.array([5], "M8[D]")]]),
    ):
        with pytest.raises((TypeError, ValueError)):
            to_column(values)


def test_to_column_compares_no_single_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, passes, compare = [], [], arrow.is_unchanged
    monkeypatch.setattr(arrow, "is_unchanged", lambda *of: compared.append(1) or compare(*of))
    image, wide = np.full((9, 9), 7, np.uint8), np.full((9, 9), 0.1, np.float32)
    arrays = [image, wide], [{"a": image[0]}, {"a": wide[0]}], [image.astype(int), wide]
    times = [image.astype("M8[s]"), image.astype("M8[us]")]
    assert [len(to_column(values)) for values in (*arrays, times)] == [2] * 4
    assert len(compared) <= 4

    class Texts(list[str]):
        def __iter__(self) -> Iterator[str]:
            return passes.append(1) or super().__iter__()

    assert (to_column(Texts("ab")).to_pylist(), len(passes)) == ([*"ab"], 1)


def test_to_column_rejects_values_without_a_type() -> None:
    tensors, wide = [np.zeros(2), np.zeros((2, 2))], np.zeros(2, np.longdouble)
    masked = np.ma.masked_array(np.zeros((2, 2)), [[0, 0], [0, 1]])
    for values in ([1, "x"], [0.5, True], [object(), object()], tensors, wide, masked, 5, None):
        with pytest.raises(TypeError):
            to_column(values)
    with pytest.raises(Exception, match="Error converting data to Arrow"):
        to_table({"a": [1], "b": [1, 2]})


@pytest.mark.parametrize("kind", [bool, np.uint8, float, "U1", "S1", "M8[us]", object])
def test_to_column_never_loses_a_mask(kind: type | str) -> None:
    items = np.array([1, 0], np.uint8 if kind == "M8[us]" else kind).astype(kind)
    masked, filled = np.ma.array(items, mask=[0, 1]), np.ma.array(items, mask=[0, 0])
    for values in ([masked], [None, masked], [[masked]], [[items, masked]], [{"a": masked}]):
        with pytest.raises((TypeError, ValueError, pa.ArrowException)):
            to_column(values)
    assert to_column(masked).is_null().to_pylist() == [False, True]
    assert to_column([items[0], np.ma.masked]).is_null().to_pylist() == [False, True]
    assert len(to_column([filled, filled])) == 2


def test_missing_tensor_is_none_in_a_batch() -> None:
    for shape in ((2, 3), (4, 1)):
        tensors = np.zeros((2, 3), np.uint8), np.ones(shape, np.uint8)
        parts = [to_table({"t": np.stack([tensor])}) for tensor in tensors]
        assert all(map(np.array_equal, to_batch(concat(parts))["t"], tensors))
        batch = to_batch(concat([parts[0], pa.table({"n": [1]}), parts[1]]))
        first, none, last = batch["t"]
        assert all(map(np.array_equal, (first, last), tensors))
        assert (none, list(batch)) == (None, ["t", "n"])
    joined = concat([to_table({"t": np.zeros((1, 2, 2))}), pa.table({"n": [1]})])
    assert to_batch(joined.slice(1))["t"].tolist() == [None]


def test_concat_keeps_tensors_of_all_shapes_next_to_null_tensors() -> None:
    def tensors(table: pa.Table) -> list[object]:
        return [value if value is None else value.tolist() for value in arrow.values_of(table["t"])]

    two, three, of_arrow = np.ones(2), np.full(3, 5.0), pa.fixed_shape_tensor(pa.float64(), [2])
    columns = [
        *map(to_column, ([two, None], [None, three], [three], [two, three, None])),
        *(pa.array([[1, 1]], of_arrow), pa.nulls(2, of_arrow)),
    ]
    columns += [columns[0].slice(1), columns[2].slice(1)]  # only null, and empty
    tables = [*(pa.table({"t": column}) for column in columns), pa.table({"n": [7]})]
    blocks = [(table, tensors(table) if "t" in table.column_names else [None]) for table in tables]
    for joined in (*product(blocks, repeat=2), *product(blocks[::-1], repeat=3)):
        table = concat([block for block, _ in joined])
        if "t" in table.column_names:
            assert tensors(table) == [value for _, values in joined for value in values]


def test_null_of_a_dictionary_is_none_in_a_batch() -> None:
    for values in (["a", "b", None, "a"], [None, None]):
        chunks = pa.chunked_array([pa.array(values, pa.string()).dictionary_encode()] * 2)
        assert to_batch(pa.table({"c": chunks}))["c"].tolist() == [*values, *values]
