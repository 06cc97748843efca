"""NumPy output files: np.load reads the columns back without pickle."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.pipeline.output.preview import first_rows
from batchinference.pipeline.output.writers import writer_for
from batchinference.pipeline.output.writers.numpy import NumpyWriter
from support.documents.parsed_write import write_of

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


def test_single_column_is_an_array() -> None:
    for name, values in COLUMNS.items():
        ending, array = file_of(pa.table({name: to_column(values)}))
        assert (name, ending, array.dtype) == (name, ".npy", values.dtype)
        assert np.array_equal(array, values)


def test_several_columns_are_named_arrays() -> None:
    table = pa.table({name: to_column(values) for name, values in COLUMNS.items()})
    ending, arrays = file_of(table)
    assert ending == ".npz"
    assert sorted(arrays) == sorted(COLUMNS)
    assert all(np.array_equal(arrays[name], values) for name, values in COLUMNS.items())


def test_name_that_leads_out_of_an_archive_is_refused() -> None:
    unsafe = ["../../evil", "/tmp/evil", "a/../../b", "..\\evil", "C:\\evil", "a//b", "a\0b"]
    for name in unsafe:
        with pytest.raises(BadOutput, match="cannot be the name of an array") as caught:
            file_of(pa.table({"good": [1], name: [2]}))
        assert repr(name) in str(caught.value)
    good = ["a/b", "..", "..a", "a..b", "a:b", "grün x", "file"]
    _, arrays = file_of(pa.table({name: [1] for name in good}))
    assert sorted(arrays) == sorted(good)


def test_lists_of_one_length_are_array_rows() -> None:
    _, floats = file_of(pa.table({"v": pa.array([[1.0, 2.0], [3.0, 4.0]])}))
    assert floats.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    for kind in ("int8", "uint64", "float16", "float32"):
        for size in (-1, 2):
            lists = pa.array([[1, 2], [3, 4]], pa.list_(pa.from_numpy_dtype(kind), size))
            _, array = file_of(pa.table({"v": lists}))
            assert (array.dtype, array.tolist()) == (kind, [[1, 2], [3, 4]])


def test_null_float_is_nan() -> None:
    _, array = file_of(pa.table({"x": pa.array([1.5, None])}))
    assert np.array_equal(array, [1.5, np.nan], equal_nan=True)


def test_column_that_needs_pickle_is_rejected() -> None:
    for column in (
        pa.array([[1.0], [1.0, 2.0]]),
        pa.array(["a", None]),
        pa.array([1, None]),
        pa.array([b"ab\x00"]),
        pa.array([{"a": 1}]),
        pa.array(["a", "ab\x00"]),
        pa.array([["a\x00"]], pa.large_list(pa.large_string())),
        pa.array([[1.0, None]]),
        pa.array([None, None], pa.list_(pa.float32())),
    ):
        with pytest.raises(BadOutput, match=r"'c' (cannot be a|has values .*one) NumPy array"):
            file_of(pa.table({"c": column}))


def test_column_with_an_unsupported_type_fails_no_row() -> None:
    table = pa.table({"n": [1, None, 3], "s": [{"a": 1}] * 3})
    for columns in (["n", "s"], ["s", "n"]):
        with pytest.raises(BadOutput, match=r"'s' cannot be a NumPy array \(struct") as raised:
            NumpyWriter().unwritable(table.select(columns))
        assert not isinstance(raised.value, UnwritableValue)


def test_error_of_a_row_has_the_value_and_what_to_do() -> None:
    table = pa.table({"n": [None, 2, 3], "t": ["a", "b\0", "c"], "v": [[1.0], [2.0], [3.0, 4.0]]})
    errors = NumpyWriter().unwritable(table)
    message = (
        "write: a NumPy array whose rows have the shape {} cannot hold the value of column {}. "
        "Remove nulls, texts that end in NUL and other shapes in a step"
    )
    assert {row: str(error) for row, error in errors.items()} == {
        0: message.format("()", "'n' (null)"),
        1: message.format("()", r"'t' ('b\x00')"),
        2: message.format("(1,)", "'v' ([3.0, 4.0])"),
    }


def test_lists_of_times_in_an_unknown_zone_are_failed_rows() -> None:
    times = pa.array([[0], [0, None]], pa.list_(pa.timestamp("us", "Nowhere/Unknown")))
    assert set(NumpyWriter().unwritable(pa.table({"times": times}))) == {0, 1}


def test_first_rows_of_an_output_are_shown(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "v": [[0.5], [1.5]]})
    for name, chosen in (("part-a", table), ("part-b", table.select(["n"]))):
        ((ending, content),) = writer_for(WRITE).files(chosen)
        (tmp_path / f"{name}{ending}").write_bytes(content)
    shown = first_rows(write_of("numpy", tmp_path), 3)
    assert shown == [{"n": 1, "v": [0.5]}, {"n": 2, "v": [1.5]}, {"array": 1}]
