"""Typed files whose columns have different types, and columns with the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.column_names import unique_names
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.planning import SAMPLED_FILES
from support.inputs.read_files import Outcome, open_input, read_files

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
@pytest.mark.parametrize("swapped", [False, True], ids=["wider last", "wider first"])
def test_files_of_two_types_get_the_wider_type(
    tmp_path: Path, one: pa.Array, other: pa.Array, shared: pa.DataType, swapped: bool
) -> None:
    write(tmp_path, *((other, one) if swapped else (one, other)))
    outcome = read_files("parquet", tmp_path)
    types = [table.schema.field("a").type for table in outcome.tables]
    assert len(types) == 2
    assert types[0] == types[1]
    assert types[0] == shared or pa.types.is_struct(shared)
    if not pa.types.is_struct(shared):
        values = (other, one) if swapped else (one, other)
        assert [row["a"] for row in outcome.good] == [value.to_pylist()[0] for value in values]
    assert outcome.bad == {}


def test_incompatible_types_are_rejected_before_reading(tmp_path: Path) -> None:
    write(tmp_path, pa.array([1]), pa.array(["x"]))
    np.save(tmp_path / "0.npy", np.arange(2))
    np.save(tmp_path / "1.npy", np.array(["x"]))
    for format_, column, files in (
        ("parquet", "a", (r"000\.parquet", r"001\.parquet, and no type")),
        ("numpy", "data", (r"0\.npy", r"1\.npy")),
    ):
        one, other = files
        with pytest.raises(
            BadInput, match=f"column '{column}' is int64 in .*{one} and string in .*{other}"
        ):
            open_input(format_, tmp_path)
    assert read_files("parquet", tmp_path, columns=["n"]).good == [{"n": 0}, {"n": 1}]
    write(tmp_path, pa.array(["x"]), pa.array([b"y"]))
    with pytest.raises(BadInput, match=r"column 'a' is string in .* binary in"):
        open_input("parquet", tmp_path)
    outcome = read_files("parquet", tmp_path, types={"a": "string"})
    assert outcome.good == [{"n": 0, "a": "x"}, {"n": 1, "a": "y"}]


def test_incompatible_unsampled_file_fails_its_rows(tmp_path: Path) -> None:
    write(tmp_path, *[pa.array([1])] * MANY)
    changed = MANY // 2 + 1
    for name in "01":
        np.save(tmp_path / f"{name}.npy", np.arange(2))
    parquet, numpy = (
        open_input(format_, tmp_path, on_change="recompute") for format_ in ("parquet", "numpy")
    )
    pq.write_table(pa.table({"n": [0, 1], "a": ["x", "y"]}), tmp_path / f"{changed:03d}.parquet")
    np.save(tmp_path / "1.npy", np.array(["x", "y"]))
    outcome, arrays = parquet.read(), numpy.read()
    message = "TypeError: column '{}' is string, and int64 in other files"
    assert outcome.bad == {(changed, row): message.format("a") for row in (0, 1)}
    assert len(outcome.good) == MANY - 1
    assert arrays.bad == {(1, 0): message.format("data")}
    assert arrays.order == [(0, 0), (0, 1)]


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


@pytest.mark.parametrize(
    ("one", "other", "shared", "bad"),
    [
        ([2**53 + 1, 1], [0.5], "float64", [0]),
        (np.array([[1, 2**53 + 1], [1, 2]]), [[0.5, 1]], "float64", [0]),
        ([5, -1], np.array([2**63], np.uint64), "uint64", [1]),
        (np.array([0, 10**12], "M8[s]"), np.array([7], "M8[ns]"), "datetime64[ns]", [1]),
        (np.array([[0, 1]], "m8[D]"), np.array([[7, 8]], "m8[ms]"), "timedelta64[ms]", []),
    ],
    ids=["integers", "vectors", "unsigned", "times", "vectors of times"],
)
def test_values_of_arrays_that_the_wider_type_cannot_hold_fail_their_rows(
    tmp_path: Path, one: Any, other: Any, shared: str, bad: list[int]
) -> None:
    np.save(tmp_path / "0.npy", one)
    np.save(tmp_path / "1.npy", other)
    outcome = read_files("numpy", tmp_path)
    assert list(outcome.bad) == [(0, row) for row in bad]
    assert len({str(table.schema) for table in outcome.tables}) == 1
    assert outcome.column("data").dtype == shared
    kept = [row for row in range(len(one)) if row not in bad]
    good = [*np.asarray(one)[kept].astype(shared).tolist(), *np.asarray(other).tolist()]
    assert outcome.column("data").tolist() == good


def test_arrays_with_other_numbers_of_axes_are_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((1, 2)))
    np.save(tmp_path / "1.npy", np.zeros((1, 3)))
    opened = open_input("numpy", tmp_path, on_change="recompute")
    for shape in ((3,), (1, 3, 2)):
        np.save(tmp_path / "1.npy", np.zeros(shape))
        with pytest.raises(BadInput, match=r"double.* in .*0\.npy and .*double.* in .*1\.npy"):
            open_input("numpy", tmp_path)
        outcome = opened.read()
        assert (outcome.order, list(outcome.bad)) == ([(0, 0)], [(1, 0)])
    np.save(tmp_path / "1.npy", np.zeros(0))
    assert read_files("numpy", tmp_path).column("data").shape == (1, 2)


@pytest.fixture(params=["parquet", "csv"])
def clashing(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Write a file with clashing names, and return its format and its path."""
    names, path = ["v", "V", "v", "v_1"], tmp_path / f"a.{request.param}"
    if request.param == "csv":
        path.write_text(",".join(names) + "\n0,1,2,3\n")
    else:
        columns = [pa.array([number]) for number in range(len(names))]
        pq.write_table(pa.Table.from_arrays(columns, names=names), path)
    return request.param, path


def test_duplicate_columns_are_renamed_or_refused(clashing: tuple[str, Path]) -> None:
    with pytest.raises(BadInput, match=r"two columns 'v'.*duplicateColumns: rename"):
        open_input(*clashing)
    given = open_input(*clashing, duplicateColumns="rename").given
    assert given.columns() == ["v", "V_2", "v_3", "v_1"]
    outcome = read_files(*clashing, duplicateColumns="rename")
    assert outcome.good == [{"v": 0, "V_2": 1, "v_3": 2, "v_1": 3}]


@pytest.mark.parametrize("clashing", ["parquet"], indirect=True)
def test_columns_are_chosen_by_their_new_names(clashing: tuple[str, Path]) -> None:
    def read(**options: Any) -> Outcome:
        return read_files(*clashing, **options)

    renamed = read(columns=["v_3", "v_1"], duplicateColumns="rename")
    assert renamed.good == [{"v_3": 2, "v_1": 3}]
    assert read(columns=["V", "v_1"]).good == [{"V": 1, "v_1": 3}]


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["a", "a_1", "a"], ["a", "a_1", "a_2"]),
        (["id", "ID"], ["id", "ID_1"]),
    ],
)
def test_names_are_made_unique(names: list[str], unique: list[str]) -> None:
    assert unique_names(names) == unique
