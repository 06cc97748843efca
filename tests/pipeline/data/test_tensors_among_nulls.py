"""Tensors stay in their rows when rows without a tensor, such as ends of files, are between.

Ray concatenates blocks into one array, slices it, and finds the tensors of a slice by counting.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.data._internal.arrow_ops.transform_pyarrow import combine_chunks

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import (
    concat,
    rows_of,
    tensors_to_lists,
    to_batch,
    to_table,
    values_of,
)
from support.tiers import examples

SHAPES = {"vectors": (4,), "pixels": (2, 3, 3), "one number": (1,)}
KINDS = [
    *(pytest.param(shape, dtype, id=f"{name} of {dtype}") for name, shape in SHAPES.items()
      for dtype in ("float32", "uint8", "bool")),
    pytest.param((3,), "<U5", id="texts"),
    pytest.param(None, "float32", id="of several shapes"),
]  # fmt: skip


def tensors(numbers: list[int], shape: tuple[int, ...] | None, dtype: str) -> Any:
    """Return a distinct tensor for each number."""
    shapes = [shape or (1 + number % 3, 2) for number in numbers]
    kind = np.dtype(dtype)
    if kind.kind == "b":
        made = [np.resize([bool(n >> bit & 1) for bit in range(9)], each)
                for n, each in zip(numbers, shapes, strict=True)]  # fmt: skip
    else:
        made = [np.full(each, n).astype(kind) for n, each in zip(numbers, shapes, strict=True)]
    return np.stack(made) if shape else made


def with_ends(present: list[bool], shape: tuple[int, ...] | None, dtype: str) -> pa.Table:
    """Return rows of tensors, and end-of-file rows where `present` is False, in one chunk."""
    parts = [
        row_ids.with_ids(to_table({"tensor": tensors([row], shape, dtype)}), 0, row)
        if there
        else row_ids.end_of_file(0, row)
        for row, there in enumerate(present)
    ]
    # pickled and unpickled, as in Ray's object store
    whole: pa.Table = pickle.loads(pickle.dumps(combine_chunks(concat(parts))))
    assert whole.column("tensor").num_chunks == 1
    return whole


def same(found: Any, expected: Any) -> bool:
    return len(found) == len(expected) and all(
        np.array_equal(np.asarray(one), np.asarray(other))
        for one, other in zip(found, expected, strict=True)
    )


PRESENT = [True, True, False, True, False, False, True, True, True, False, True, True]


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_slices_hold_the_tensors_of_their_rows(shape: tuple[int, ...] | None, dtype: str) -> None:
    whole = with_ends(PRESENT, shape, dtype).select(["tensor"])
    for start in range(len(PRESENT)):
        for stop in range(start + 1, len(PRESENT) + 1):
            if not all(PRESENT[start:stop]):
                continue
            part = whole.slice(start, stop - start)
            expected = tensors(list(range(start, stop)), shape, dtype)
            assert same(to_batch(part)["tensor"], expected)
            assert same(values_of(part.column("tensor")), expected)
            assert same([row["tensor"] for row in rows_of(part)], expected)
            lists = tensors_to_lists(part).column("tensor").to_pylist()
            assert same(lists, [e.tolist() for e in expected])


@settings(max_examples=examples(100))
@given(st.lists(st.booleans(), min_size=2, max_size=12), st.data())
def test_split_parts_hold_the_tensors_of_their_rows(
    present: list[bool], data: st.DataObject
) -> None:
    present[0] = True
    start = data.draw(st.integers(0, len(present) - 1))
    stop = data.draw(st.integers(start + 1, len(present)))
    good, _ = row_ids.split(with_ends(present, (2, 2), "float32").slice(start, stop - start))
    numbers = [row for row in range(start, stop) if present[row]]
    for first in range(len(numbers)):
        batch = to_batch(good.slice(first, 2).select(["tensor"]))["tensor"]
        assert same(batch, tensors(numbers[first : first + 2], (2, 2), "float32"))


def test_tensors_after_null_rows_keep_their_rows() -> None:
    values = [np.full(3, 0.0), None, None, np.full(3, 3.0), np.full(3, 4.0)]
    parts = [pa.table({"n": [n]}) if value is None else to_table({"n": [n], "x": value[None]})
             for n, value in enumerate(values)]  # fmt: skip
    whole = combine_chunks(concat(parts))
    assert same(to_batch(whole.slice(3))["x"], values[3:])
    assert [None if x is None else x[0] for x in to_batch(whole.slice(1))["x"]] == [
        None, None, 3.0, 4.0
    ]  # fmt: skip
