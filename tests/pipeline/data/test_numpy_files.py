"""NumPy files: columns come back by np.load, which unpickles nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.blocks import to_column
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.sample import first_rows
from batchinference.pipeline.writers import writer_for
from support.writing import write_of

WRITE = write_of("numpy")
COLUMNS = {
    "embedding": np.arange(6, dtype=np.float32).reshape(2, 3),
    "image": np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3),
    "number": np.array([1, 2]),
    "flag": np.array([True, False]),
    "moment": np.array(["2026-01-02", "2026-01-03"], dtype="datetime64[s]"),
    "text": np.array(["a", "ü\u2028"]),
    "file": np.array([1.5, 2.5]),
}


def file_of(table: pa.Table) -> tuple[str, Any]:
    ((ending, content),) = writer_for(WRITE).files(table)
    return ending, np.load(io.BytesIO(content), allow_pickle=False)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_single_column_is_an_array(name: str) -> None:
    ending, array = file_of(pa.table({name: to_column(COLUMNS[name])}))
    assert ending == ".npy"
    assert array.dtype == COLUMNS[name].dtype
    assert np.array_equal(array, COLUMNS[name])


def test_several_columns_are_arrays_with_their_names() -> None:
    table = pa.table({name: to_column(values) for name, values in COLUMNS.items()})
    ending, arrays = file_of(table)
    assert ending == ".npz"
    assert sorted(arrays) == sorted(COLUMNS)
    assert all(np.array_equal(arrays[name], values) for name, values in COLUMNS.items())


def test_lists_of_one_length_are_rows_of_an_array() -> None:
    _, array = file_of(pa.table({"v": pa.array([[1.0, 2.0], [3.0, 4.0]])}))
    assert array.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("kind", ["int8", "uint64", "float16", "float32"])
@pytest.mark.parametrize("size", [-1, 2], ids=["list", "fixed size"])
def test_elements_of_lists_keep_their_type(kind: str, size: int) -> None:
    values = np.array([[1, 2], [3, 4]], kind)
    lists = pa.array(values.tolist(), pa.list_(pa.from_numpy_dtype(kind), size))
    _, array = file_of(pa.table({"v": lists}))
    assert array.dtype == kind
    assert np.array_equal(array, values)


def test_a_missing_real_number_is_nan() -> None:
    _, array = file_of(pa.table({"x": pa.array([1.5, None])}))
    assert np.array_equal(array, [1.5, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    "column",
    [pa.array([[1.0], [1.0, 2.0]]), pa.array(["a", None]), pa.array([1, None]),
     pa.array([b"ab\x00"]), pa.array([{"a": 1}]), pa.array(["a", "ab\x00"]),
     pa.array([["a\x00"]], pa.large_list(pa.large_string())), pa.array([[1.0, None]]),
     pa.array([None, None], pa.list_(pa.float32()))],
    ids=["ragged", "null text", "null integer", "bytes", "struct", "text that ends in NUL",
         "texts that end in NUL", "null element", "null lists"],
)  # fmt: skip
def test_what_only_pickling_could_hold_is_refused(column: pa.Array) -> None:
    with pytest.raises(BadOutput, match=r"column 'c' .* has no form as a NumPy array"):
        file_of(pa.table({"c": column}))


def test_the_first_rows_of_an_output_can_be_seen(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "v": [[0.5], [1.5]]})
    for name, chosen in (("part-a", table), ("part-b", table.select(["n"]))):
        ((ending, content),) = writer_for(WRITE).files(chosen)
        (tmp_path / f"{name}{ending}").write_bytes(content)
    shown = first_rows(write_of("numpy", tmp_path), 3)
    assert shown == [{"n": 1, "v": [0.5]}, {"n": 2, "v": [1.5]}, {"array": 1}]
