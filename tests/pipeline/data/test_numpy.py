"""NumPy files: rows equal those of np.load along the first axis."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchinference.spec.warnings import WarningName
from support.inputs.read_files import open_input, read_files

RANDOM = np.random.default_rng(7)
ARRAYS: dict[str, np.ndarray] = {
    "one axis": np.arange(5),
    "two axes": RANDOM.random((4, 3)),
    "images in memory": RANDOM.integers(0, 255, (2, 4, 5, 3), dtype=np.uint8),
    "half precision": RANDOM.random((3, 2)).astype(np.float16),
    "columns first": np.asfortranarray(RANDOM.random((4, 3, 2))),
    "the other byte order": np.arange(6, dtype=">i4").reshape(3, 2),
    "booleans": np.array([True, False, True]),
    "texts": np.array(["a", "längst", ""]),
    "bytes": np.array([b"a", b"bc"]),
    "times": np.array(["2026-01-01", "2026-02-03"], "datetime64[s]"),
    "days": np.array(["2026-01-01", "1926-02-03"], "datetime64[D]"),
    "months of two axes": np.array([["2026-01", "2026-02"]], ">M8[M]"),
    "picoseconds": np.array([7000, -2000], "datetime64[ps]"),
    "durations": np.array([7, -2], "timedelta64[W]"),
    "a single row": RANDOM.random((1, 2)),
    "a number alone": np.array(7.5),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_rows_equal_np_load(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    outcome = read_files("numpy", tmp_path)
    expected = np.atleast_1d(np.load(tmp_path / "a.npy"))
    assert np.array_equal(outcome.column("data"), expected)
    assert (outcome.bad, outcome.ends) == ({}, {0: len(expected)})


def test_archive_arrays_are_columns(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"id": np.arange(6), "vector": RANDOM.random((6, 4))}
    arrays["name"] = np.array(list("abcdef"))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        outcome = read_files("numpy", tmp_path)
        for name, array in arrays.items():
            assert np.array_equal(outcome.column(name), array), (save.__name__, name)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "columns first.npy"])
def test_chunk_size_does_not_change_rows(tmp_path: Path, name: str) -> None:
    array = RANDOM.random((100, 3))
    if name.endswith("npz"):
        np.savez(tmp_path / name, data=array)
    else:
        np.save(tmp_path / name, np.asfortranarray(array) if " " in name else array)
    outcome = read_files("numpy", tmp_path, sizes={"chunk_bytes": 7 * 24})  # seven rows
    assert max(table.num_rows for table in outcome.tables) == 7
    assert np.array_equal(outcome.column("data"), array)
    assert outcome.order == [(0, row) for row in range(100)]


def test_empty_array_has_no_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.empty((0, 3)))
    outcome = read_files("numpy", tmp_path)
    assert (outcome.good, outcome.bad, outcome.ends) == ([], {}, {0: 0})


def test_unsupported_array_is_one_failed_row(tmp_path: Path) -> None:
    for array, kind in (
        (np.array([1j]), "complex128"),
        (np.zeros(2, [("x", "i4")]), "[('x', '<i4')]"),
        (np.array([{"a": 1}], dtype=object), "object"),
        (np.array([1], np.longdouble), str(np.dtype(np.longdouble))),
        (np.array([1], "timedelta64[M]"), "timedelta64[M]"),
    ):
        np.save(tmp_path / "a.npy", array)
        np.save(tmp_path / "b.npy", np.arange(3))
        outcome = read_files("numpy", tmp_path)
        assert outcome.bad == {(0, 0): f"ValueError: arrays of {kind} cannot be read"}
        assert outcome.order == [(1, 0), (1, 1), (1, 2)]
    np.savez(tmp_path / "c.npz", x=np.arange(3), y=np.arange(2))
    assert read_files("numpy", tmp_path / "c.npz").bad == {
        (0, 0): "ValueError: the arrays have different numbers of rows: x 3, y 2"
    }


def test_value_that_arrow_cannot_hold_fails_its_row(tmp_path: Path) -> None:
    for array in (
        np.array([0, 10**18, 1], "datetime64[Y]"),
        np.array([0, 1, 1000], "datetime64[ps]"),
        np.array(["a", "\ud800", "b"]),
    ):
        np.save(tmp_path / "a.npy", array)
        outcome = read_files("numpy", tmp_path)
        assert outcome.order == [(0, 0), (0, 2)]
        assert str(array.dtype) in outcome.bad[0, 1]


def test_file_with_two_arrays_is_one_failed_row(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        for array in (np.arange(3), np.arange(4)):
            np.save(file, array)
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("a.npy", _of_shape("(2,)"))
    outcome = read_files("numpy", tmp_path)
    assert (outcome.good, list(outcome.bad)) == ([], [(0, 0), (1, 0)])
    assert all("second" in error for error in outcome.bad.values())


def test_member_that_claims_more_bytes_than_it_has_is_one_failed_row(tmp_path: Path) -> None:
    for name, members in {"a.npz": {"a.npy": 1}, "b.npz": {"a.npy": 1, "b.npy": 0}}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for member, missing in members.items():
                content = _of_shape("(3,)")
                archive.writestr(member, content[: len(content) - missing])
    assert list(read_files("numpy", tmp_path).bad) == [(0, 0), (1, 0)]


def test_other_members_of_an_archive_are_counted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("folder/", b"")
        archive.writestr("about.json", b"{}")
        archive.writestr("x.pkl", b"")
    outcome = read_files("numpy", tmp_path)
    assert outcome.column("x").tolist() == [0, 1, 2]
    warnings = [row for batch in outcome.batches for row in batch.warnings.to_pylist()]
    assert [(row["id"], row["name"], row["amount"]) for row in warnings] == [
        (0, WarningName.MEMBERS_IGNORED, 2)
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archive_without_arrays_or_with_two_of_a_name_is_one_failed_row(tmp_path: Path) -> None:
    for names in (["about.json"], ["x.npy", "x.npy"], ["folder/"], []):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            for name in names:
                archive.writestr(name, _of_shape("(3,)"))
        outcome = read_files("numpy", tmp_path)
        assert (outcome.good, set(outcome.bad)) == ([], {(0, 0)}), names
        assert "array" in outcome.bad[0, 0]


def _of_shape(shape: str) -> bytes:
    """Return a file with this shape in its header, followed by three numbers."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + bytes(24)


def test_impossible_shape_is_one_failed_row(tmp_path: Path) -> None:
    shapes = ("(-1,)", "(3, -1)", f"({10**30},)", f"(1, {10**20})", "(1.5,)")
    (tmp_path / "b.npy").write_bytes(_of_shape("(3,)"))
    for shape in shapes:
        (tmp_path / "a.npy").write_bytes(_of_shape(shape))
        outcome = read_files("numpy", tmp_path)
        assert list(outcome.bad) == [(0, 0)], shape
        assert "shape" in outcome.bad[0, 0]
        assert shape.strip("(),").split(",")[0] in outcome.bad[0, 0]
        assert outcome.column("data").tolist() == [0, 0, 0]
        assert outcome.ends == {0: 1, 1: 3}


def test_damaged_file_is_one_failed_row(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.arange(2))
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("a.npy", b"no array")
    text = (tmp_path / "text.zip").read_bytes()
    for content in (b"", b"\x93NUMPY", b"no array at all", b"PK\x03\x04 no archive", text):
        (tmp_path / "a.npz").write_bytes(content)
        outcome = read_files("numpy", tmp_path)
        assert list(outcome.bad) == [(0, 0)], content
        assert outcome.order == [(1, 0), (1, 1)], content


def test_headers_give_columns_and_row_counts(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3))
    np.save(tmp_path / "b.npy", np.arange(4))
    opened = open_input("numpy", tmp_path)
    result = opened.file_rows.reader
    assert result.columns() == ["x", "y", "data"]
    files = opened.snapshot.files()
    assert [result.rows_in(opened.snapshot.address(file), file.size) for file in files] == [3, 4]
