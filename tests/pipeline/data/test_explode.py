"""The explode step: one row per list element."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.arrow import to_batch, to_column
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult, load_step, relational
from batchinference.spec.steps import Step

LISTS = [["a", "b"], [], None, ["c"]]


def explode(table: pa.Table) -> TransformResult:
    step = Step.model_validate({"name": "each", "explode": {"column": "list"}})
    changed = load_step(step, Device())(table)
    assert isinstance(changed, TransformResult)
    return changed


def exploded_parents(table: pa.Table) -> list[int]:
    """Return the row that each exploded row was made from, after as many calls as are needed."""
    done, parents = 0, list[int]()
    while done < table.num_rows:
        changed = explode(table.slice(done))
        parents += (changed.parents + done).tolist()
        done += changed.rows or table.num_rows - done
    return parents


def test_explode_repeats_the_other_columns() -> None:
    strings, offsets = pa.array(["a", "b", "c"]), pa.array([0, 2, 3], pa.int32())
    masked = pa.ListArray.from_arrays(offsets, strings, mask=pa.array([True, False]))
    for lists, numbers, elements in (
        (pa.array(LISTS, pa.list_(pa.string())), [0, 0, 3], ["a", "b", "c"]),
        (pa.array(LISTS, pa.large_list(pa.string())), [0, 0, 3], ["a", "b", "c"]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), [0, 0, 1, 1], [1, 2, 3, 4]),
        (pa.array(LISTS).slice(2), [1], ["c"]),
        (masked, [1], ["c"]),  # elements of a null list are ignored
        (pa.nulls(2), [], []),
    ):
        changed = explode(pa.table({"n": range(len(lists)), "list": lists}))
        assert (changed.table.num_rows, changed.parents.tolist()) == (len(numbers), numbers), lists
        if numbers:
            assert changed.table.to_pydict() == {"n": numbers, "list": elements}, lists
    table = pa.table({"n": [1, 2, 3, 4], "list": LISTS}).slice(2)
    assert explode(table).table.to_pydict() == {"n": [4], "list": ["c"]}


@pytest.mark.parametrize("lengths", [(2, 2), (1, 3)], ids=["one shape", "several shapes"])
def test_tensors_are_exploded_along_the_first_axis(lengths: tuple[int, int]) -> None:
    frames = np.empty(2, dtype=object)
    for row, length in enumerate(lengths):
        frames[row] = np.full((length, 4, 4, 3), row, dtype=np.uint8)
    changed = explode(pa.table({"list": to_column(frames)}))
    images = to_batch(changed.table)["list"]
    assert images.shape == (4, 4, 4, 3)
    assert images[:, 0, 0, 0].tolist() == [0] * lengths[0] + [1] * lengths[1]
    assert changed.parents.tolist() == [0] * lengths[0] + [1] * lengths[1]


def test_large_results_are_those_of_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relational, "RESULT_BYTES", 5000)
    table = pa.table({"list": [[1, 2], [3], [4, 5, 6]], "text": ["x" * 1000] * 3})
    assert exploded_parents(table) == [0, 0, 1, 2, 2, 2]
    assert explode(table).rows == 2


def test_large_rows_among_small_ones_are_exploded_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relational, "RESULT_BYTES", 5000)
    lists, texts = [[1] * 20, []] * 2 + [[]] * 60, ["x" * 1000, "y"] * 2 + ["y"] * 60
    table = pa.table({"list": lists, "text": texts})
    assert explode(table).table.nbytes < 25_000
    assert exploded_parents(table) == [0] * 20 + [2] * 20


def test_one_large_row_before_many_small_ones_is_found_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relational, "RESULT_BYTES", 50_000)
    table = pa.table({"list": [[1] * 5] * 3000, "text": ["x" * 12_000] + ["y"] * 2999})
    measured = Mock(side_effect=relational.bytes_to_repeat)
    monkeypatch.setattr(relational, "bytes_to_repeat", measured)
    assert explode(table).rows == 1
    assert measured.call_count < 20


def test_dictionaries_and_elements_are_not_counted_for_each_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relational, "RESULT_BYTES", 50_000)
    words = pa.array(["x" * 1000, "y" * 1000] * 10).dictionary_encode()
    assert explode(pa.table({"list": [[1] * 100] * 20, "word": words})).rows is None


def test_rows_without_lists_fail() -> None:
    failed = explode(pa.table({"list": [1, 2]})).failed
    expected = "step 'each': column 'list' holds int64, and explode needs lists"
    assert {row: str(error) for row, error in failed.items()} == {0: expected, 1: expected}


def test_block_without_elements_has_their_type_if_it_is_known() -> None:
    for lists, kind in (
        (pa.array([[], None], pa.list_(pa.int8())), pa.int8()),
        (pa.array([[], None], pa.list_(pa.null())), pa.null()),
        (to_column(np.zeros((2, 0, 3))), pa.null()),
    ):
        changed = explode(pa.table({"list": lists}))
        assert (changed.table.num_rows, changed.table.schema.types) == (0, [kind])
