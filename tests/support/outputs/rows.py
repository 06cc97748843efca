"""Reads the rows of outputs with the formats' own libraries, and compares them."""

from __future__ import annotations

import json
import math
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

Row = dict[str, Any]


def rows_of(directory: Path) -> list[Row]:
    """Return the rows of all Parquet and JSON files directly in a folder."""
    rows: list[Row] = []
    for file in sorted(directory.iterdir()):
        if file.suffix == ".parquet":
            rows += pq.read_table(file).to_pylist()
        elif file.suffix == ".jsonl":
            rows += [json.loads(line) for line in file.read_text().splitlines()]
    return rows


def assert_same_rows(left: list[Row], right: list[Row], tolerance: float = 1e-5) -> None:
    """Assert that both lists contain the same rows, in any order. Only the file names of paths are
    compared, because the same input is stored in two places."""
    assert len(left) == len(right)
    for one, other in zip(sorted(left, key=_key), sorted(right, key=_key), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert same(_place(name, one[name]), _place(name, other[name]), tolerance), (
                f"{name}: {one[name]} and {other[name]} of {_key(one)}"
            )


def same(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two nested values are equal, with this tolerance for floats."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=tolerance) or (
            math.isnan(one) and math.isnan(other)
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            same(*pair, tolerance) for pair in zip(one, other, strict=True)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same(one[key], other[key], tolerance) for key in one
        )
    return bool(one == other)


def _key(row: Row) -> list[str]:
    """Return the texts of a row, which distinguish rows without comparing floats."""
    return [str(_place(name, row[name])) for name in sorted(row) if isinstance(row[name], str)]


def _place(name: str, value: Any) -> Any:
    return PurePosixPath(value).name if name == "path" else value
