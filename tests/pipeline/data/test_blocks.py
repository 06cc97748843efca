"""What the pipeline takes for granted of Ray Data's internals: a new version must still do this."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
import ray
from ray.data._internal.arrow_ops import transform_pyarrow
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink, Datasource, ReadTask
from ray.data.extensions import (
    ArrowTensorArray,
    ArrowVariableShapedTensorArray,
    get_arrow_extension_tensor_types,
)

from batchinference.pipeline.blocks import concat, to_batch, to_column, to_table


def test_this_is_the_ray_that_was_looked_into() -> None:
    assert ray.__version__.startswith("2.60.")


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_rays_functions_take_what_they_are_given() -> None:
    wanted = {"blocks", "promote_types", "preserve_order"}
    assert wanted <= set(parameters(transform_pyarrow.concat))
    assert parameters(BlockAccessor.for_block) == ["block"]
    assert parameters(BlockAccessor.batch_to_arrow_block) == ["batch"]
    accessor = BlockAccessor.for_block(pa.table({"a": [1]}))
    assert parameters(accessor.to_numpy)[0] == "columns"
    assert parameters(accessor.to_arrow) == []
    assert parameters(Datasink.write)[1:] == ["blocks", "ctx"]
    assert parameters(ReadTask.__init__)[1:3] == ["read_fn", "metadata"]
    tasks = ["self", "parallelism", "per_task_row_limit", "data_context"]
    assert parameters(Datasource.get_read_tasks) == tasks


def test_tables_come_below_each_other_in_their_order() -> None:
    tables = [pa.table({"a": [number, number + 1]}) for number in (5, 1, 3)]
    assert concat(tables).column("a").to_pylist() == [5, 6, 1, 2, 3, 4]


def test_one_table_is_left_as_it_is() -> None:
    table = pa.table({"a": [1]})
    assert concat([table]) is table


def test_columns_that_a_table_lacks_become_null() -> None:
    joined = concat([pa.table({"a": [1]}), pa.table({"b": ["x"]}), pa.table({"a": [2]})])
    assert joined.to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": 2, "b": None},
    ]


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.null(), pa.string(), pa.string()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.list_(pa.null()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_types_are_widened(one: pa.DataType, other: pa.DataType, joined: pa.DataType) -> None:
    tables = [pa.table({"a": pa.nulls(2, kind)}) for kind in (one, other)]
    assert concat(tables).schema.field("a").type == joined


def test_structs_are_widened() -> None:
    joined = concat([pa.table({"a": [{"x": 1}]}), pa.table({"a": [{"y": "z"}]})])
    assert joined.column("a").to_pylist() == [{"x": 1, "y": None}, {"x": None, "y": "z"}]


@pytest.mark.parametrize(
    "values",
    [np.arange(12.0).reshape(2, 3, 2), [np.zeros((2, 2), np.uint8), np.ones((3, 2), np.uint8)]],
    ids=["one shape", "several shapes"],
)
def test_tensors_survive_rows_without_one(values: np.ndarray | list[np.ndarray]) -> None:
    table = pa.table({"t": to_column(values), "good": [True, True]})
    joined = concat([table, pa.table({"good": [False]}), table])
    assert joined.column("t").null_count == 1
    restored = to_batch(joined.filter(joined.column("good")))["t"]
    for found, expected in zip(restored, [*values, *values], strict=True):
        assert np.array_equal(found, expected)


def test_tensors_of_two_shapes_become_one_column() -> None:
    one = pa.table({"t": to_column(np.zeros((1, 2, 2), np.uint8))})
    other = pa.table({"t": to_column(np.ones((1, 3, 2), np.uint8))})
    first, second = to_batch(concat([one, other]))["t"]
    assert np.array_equal(first, np.zeros((2, 2)))
    assert np.array_equal(second, np.ones((3, 2)))


def test_a_batch_holds_numpy_arrays_with_the_row_first() -> None:
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
    assert np.isnan(batch["missing"][1])
    assert batch["struct"][0] == {"a": 1}


def test_a_batch_of_chunked_columns_is_whole() -> None:
    table = pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": [2, 3]})])
    assert to_batch(table)["a"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], pa.int64()),
        ((1, 2), pa.int64()),
        (np.array([1.0, 2.0], np.float32), pa.float32()),
        (np.array([1.0, 2.0], np.float16), pa.float16()),
        (["a", "b"], pa.string()),
        (np.array(["a", None], object), pa.string()),
        ([b"a", b"b"], pa.binary()),
        ([1, None], pa.int64()),
        ([None, None], pa.null()),
        ([[1], [1, 2]], pa.list_(pa.int64())),
        ([{"a": 1}, {"a": 2}], pa.struct([("a", pa.int64())])),
    ],
    ids=[
        *("list", "tuple", "float32", "float16", "text", "objects", "bytes", "a missing one"),
        *("all missing", "lists", "dicts"),
    ],
)
def test_values_become_a_column_of_the_type_they_have(values: object, kind: pa.DataType) -> None:
    column = to_column(values)
    assert column.type == kind
    assert len(column) == 2


def test_arrays_of_more_dimensions_become_tensors() -> None:
    tensors = get_arrow_extension_tensor_types()
    array = np.arange(12, dtype=np.int16).reshape(2, 3, 2)
    ragged = [array[0], array[1][:1]]
    for values in (array, list(array), ragged):
        column = to_column(values)
        assert isinstance(column.type, tensors)
        for found, expected in zip(to_batch(pa.table({"t": column}))["t"], values, strict=True):
            assert found.dtype == np.int16
            assert np.array_equal(found, expected)


def test_tensor_arrays_are_made_from_numpy() -> None:
    fixed = ArrowTensorArray.from_numpy(np.zeros((2, 3)))
    ragged = ArrowVariableShapedTensorArray.from_numpy([np.zeros((1, 3)), np.zeros((2, 3))])
    assert (len(fixed), fixed.type.shape, fixed.type.value_type) == (2, (3,), pa.float64())
    assert (len(ragged), ragged.type.ndim, ragged.type.value_type) == (2, 2, pa.float64())


def test_arrow_data_is_taken_as_it_is() -> None:
    array = pa.array(["a", "b"]).dictionary_encode()
    for column in (array, pa.chunked_array([array, array])):
        assert to_column(column) is column


class Opaque:
    """What Arrow has no type for."""


@pytest.mark.parametrize(
    "values",
    [[1, "x"], [Opaque(), Opaque()], [np.zeros(2), np.zeros((2, 2))], 5, None, np.array(5)],
    ids=["mixed", "objects", "tensors of other depths", "a number", "None", "an array of none"],
)
def test_what_is_no_column_is_refused(values: object) -> None:
    with pytest.raises(TypeError):
        to_column(values)


def test_a_table_has_columns_of_one_length() -> None:
    with pytest.raises(Exception, match="Error converting data to Arrow"):
        to_table({"a": [1], "b": [1, 2]})


def test_a_read_task_yields_what_its_function_yields() -> None:
    def tables() -> Iterator[pa.Table]:
        yield from (pa.table({"a": [1]}), pa.table({"b": [2]}))

    from ray.data.block import BlockMetadata

    nothing = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
    task = ReadTask(tables, nothing)
    assert [table.to_pylist() for table in task()] == [[{"a": 1}], [{"b": 2}]]


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param([np.zeros((2, 3), np.uint8), np.ones((2, 3), np.uint8)], id="one shape"),
        pytest.param([np.zeros((2, 3), np.uint8), np.ones((4, 1), np.uint8)], id="several shapes"),
    ],
)
def test_a_tensor_that_is_missing_is_none_in_a_batch(tensors: list[np.ndarray]) -> None:
    parts = [to_table({"t": np.stack([tensor])}) for tensor in tensors]
    table = concat([parts[0], pa.table({"n": [1]}), parts[1]])
    first, none, last = to_batch(table)["t"]
    assert none is None
    assert np.array_equal(first, tensors[0])
    assert np.array_equal(last, tensors[1])
    assert list(to_batch(table)) == ["t", "n"]


def test_a_batch_without_any_tensor_is_all_none() -> None:
    table = concat([to_table({"t": np.zeros((1, 2, 2))}), pa.table({"n": [1]})]).slice(1)
    assert to_batch(table)["t"].tolist() == [None]
