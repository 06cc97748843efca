"""Typed files whose types differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.sizing import SAMPLED_FILES
from support.inputs.read_files import open_input, read_files

MANY = 3 * SAMPLED_FILES


def write(folder: Path, *columns: Any) -> None:
    for number, column in enumerate(columns):
        pq.write_table(pa.table({"n": [number], "a": column}), folder / f"{number:03d}.parquet")


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (pa.array([1], pa.int32()), pa.array([2]), pa.int64()),
        (pa.array([1]), pa.array([2.5]), pa.float64()),
        (pa.array([[1.5]], pa.list_(pa.float32())), pa.array([[2.5]]), pa.list_(pa.float64())),
        (pa.nulls(1), pa.array(["x"]), pa.string()),
        (pa.array(["x"]).dictionary_encode(), pa.array(["y"]), pa.string()),
        (pa.array([{"a": 1}]), pa.array([{"b": "x"}]),
         pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ],
    ids=["integers", "numbers", "lists", "nothing", "categories", "structs"],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True], ids=["wider last", "wider first"])
def test_files_of_two_types_get_the_wider_type(
    tmp_path: Path, one: pa.Array, other: pa.Array, shared: pa.DataType, turned: bool
) -> None:
    write(tmp_path, *((other, one) if turned else (one, other)))
    outcome = read_files("parquet", tmp_path)
    found = [table.schema.field("a").type for table in outcome.tables if "a" in table.column_names]
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0] == shared or pa.types.is_struct(shared)
    assert outcome.bad == {}


def test_incompatible_types_are_rejected_before_reading(tmp_path: Path) -> None:
    write(tmp_path, pa.array([1]), pa.array(["x"]))
    words = r"column 'a' is int64 in .*000\.parquet and string in .*001\.parquet, and no type"
    with pytest.raises(BadInput, match=words):
        open_input("parquet", tmp_path)
    assert read_files("parquet", tmp_path, columns=["n"]).good == [{"n": 0}, {"n": 1}]


def test_incompatible_unsampled_file_fails_its_rows(tmp_path: Path) -> None:
    write(tmp_path, *[pa.array([1])] * MANY)
    unseen = tmp_path / f"{MANY // 2 + 1:03d}.parquet"
    opened = open_input("parquet", tmp_path)
    pq.write_table(pa.table({"n": [0, 1], "a": ["x", "y"]}), unseen)
    outcome = opened.read()
    words = "TypeError: column 'a' is string, and int64 in other files"
    assert outcome.bad == {(MANY // 2 + 1, row): words for row in (0, 1)}
    assert len(outcome.good) == MANY - 1


@pytest.mark.parametrize("shape", [(2,), (2, 3)], ids=["numbers", "vectors"])
@pytest.mark.parametrize("order", [(np.float32, np.float64), (np.float64, np.int16)])
def test_arrays_of_two_types_get_the_wider_type(
    tmp_path: Path, shape: tuple[int, ...], order: tuple[type, type]
) -> None:
    for number, dtype in enumerate(order):
        np.save(tmp_path / f"{number}.npy", np.full(shape, number, dtype))
    outcome = read_files("numpy", tmp_path)
    assert outcome.column("data").dtype == np.float64
    assert outcome.column("data").tolist() == [*np.zeros(shape).tolist(), *np.ones(shape).tolist()]


def test_incompatible_arrays_are_rejected_before_reading(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.arange(2))
    np.save(tmp_path / "1.npy", np.array(["x"]))
    with pytest.raises(
        BadInput, match=r"column 'data' is int64 in .*0\.npy and string in .*1\.npy"
    ):
        open_input("numpy", tmp_path)


def test_incompatible_unsampled_array_fails_its_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.arange(2))
    np.save(tmp_path / "1.npy", np.arange(2))
    opened = open_input("numpy", tmp_path)
    np.save(tmp_path / "1.npy", np.array(["x", "y"]))
    outcome = opened.read()
    words = "TypeError: column 'data' is string, and int64 in other files"
    assert outcome.bad == {(1, 0): words}
    assert outcome.places == [(0, 0), (0, 1)]
