"""Blocks of Ray Data: no row, provenance or tensor is lost when Ray cuts and joins blocks.

Ray concatenates blocks into one array, slices it, and finds the tensors of a slice by counting."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.data._internal.arrow_ops import transform_pyarrow

from batchinference.pipeline.arrow import (
    concat,
    rows_of,
    tensors_to_lists,
    to_batch,
    to_table,
    values_of,
)
from batchinference.pipeline.execution import dataset
from batchinference.pipeline.execution.block_codec import (
    COMPRESSED_BYTES,
    NULLS,
    ROWS_PER_EMPTY_ROW,
    SHARE,
    SIDECAR,
    decode,
    encode,
    has_data,
)
from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.row_batch import (
    FULL_SHARE,
    ROW_MASK,
    RowBatch,
    consecutive_ids,
    merged,
    pack_id,
)
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.steps import Step
from support.outputs import batches
from support.outputs.batches import (
    Run,
    as_one_batch,
    end,
    failed,
    filtered,
    good,
    outcomes,
    plain,
    shares_of,
)
from support.tiers import examples

FEW = settings(max_examples=examples(100), deadline=None)
OUTCOMES = st.lists(
    st.lists(st.sampled_from(["good", "failed", "filtered"]), min_size=1, max_size=4), max_size=6
)
"""The outcomes of the rows that each input row of a batch became."""


def joined_by_ray(blocks: Iterable[pa.Table]) -> pa.Table:
    """Concatenate blocks as Ray does between stages, and send them through its object store."""
    full = transform_pyarrow.concat(list(blocks), promote_types=True, preserve_order=True)
    return pickle.loads(pickle.dumps(transform_pyarrow.combine_chunks(full)))


@st.composite
def batch_of(draw: st.DrawFn, file: int) -> RowBatch:
    """Return a batch of rows of a file after steps that failed, filtered and multiplied rows."""
    children = draw(OUTCOMES)
    parents = np.array([row for row, result in enumerate(children) for _ in result], dtype=np.int64)
    rows = consecutive_ids(file, 0, len(children))
    given_: dict[str, list[int]] = {"good": [], "failed": [], "filtered": []}
    for number, outcome in enumerate(outcome for result in children for outcome in result):
        given_[outcome].append(number)
    if draw(st.booleans()):
        given_["good"] = draw(st.permutations(given_["good"]))
    ids = {name: rows[parents[numbers]] for name, numbers in given_.items()}
    shares = st.lists(st.integers(1, FULL_SHARE - 1), min_size=len(rows), max_size=len(rows))
    errors = [failed(file, row & ROW_MASK) for row in ids["failed"].tolist()]
    return replace(
        merged([*errors, *([end(file, len(rows))] if draw(st.booleans()) else [])]),
        table=draw(table_of(given_["good"])) if given_["good"] else pa.table({}),
        ids=ids["good"],
        input_ids=np.array(draw(st.permutations(rows.tolist())), dtype=np.int64),
        filtered=ids["filtered"],
        notes=tuple(draw(st.lists(st.just(("own", f"note {file}")), max_size=2))),
        shares=np.array(draw(shares)) if len(rows) and draw(st.booleans()) else None,
    )


@st.composite
def table_of(draw: st.DrawFn, numbers: list[int]) -> pa.Table:
    """Return a table with a row for each number; each column may be without any value."""
    nulls = pa.nulls(len(numbers))
    tensors = to_table({"x": np.array([np.full((2, 2), n) for n in numbers])}).column(0)
    columns = {"text": pa.array(map(str, numbers)), "tensor": tensors, "n": pa.array(numbers)}
    return pa.table({name: draw(st.sampled_from([column, nulls]))
                     for name, column in columns.items()})  # fmt: skip


BATCHES = st.integers(1, 4).flatmap(lambda count: st.tuples(*(batch_of(n) for n in range(count))))


def totals(parts: Iterable[RowBatch]) -> dict[str, Counter[Any]]:
    """Return everything that batches hold, and the sum of the shares of each input row."""
    by_name = {name: Counter[Any]() for name in ("rows", "errors", "filtered", "ends", "notes")}
    sums = Counter[int]()
    for batch in parts:
        rows = batches.rows_of(batch)
        by_name["rows"].update(repr((row_id, sorted(row.items()))) for row_id, row in rows)
        by_name["errors"].update(map(repr, batch.errors.to_pylist()))
        by_name["filtered"].update(batch.filtered.tolist())
        by_name["ends"].update(batch.ends)
        by_name["notes"].update(batch.notes)
        sums.update(shares_of(batch) or dict.fromkeys(batch.input_ids.tolist(), FULL_SHARE))
    return {**by_name, "shares": sums}


@FEW
@given(batch_of(5))
def test_decoded_block_is_the_batch(batch: RowBatch) -> None:
    assert plain(decode(encode(batch))) == plain(batch)


@FEW
@given(BATCHES, st.data())
def test_cut_and_joined_blocks_lose_nothing(
    given_: tuple[RowBatch, ...], data: st.DataObject
) -> None:
    full = joined_by_ray(encode(batch) for batch in data.draw(st.permutations(given_)))
    assert totals([decode(full)]) == totals(given_)
    edges = [0, *sorted(data.draw(st.sets(st.integers(0, full.num_rows)))), full.num_rows]
    slices = [full.slice(a, b - a) for a, b in pairwise(edges) if a < b]
    parts = [decode(one) for one in slices]
    assert totals(parts) == totals(given_)
    for part in parts:
        assert len(set(part.input_ids.tolist())) == len(part.input_ids)
        kept = {*part.ids.tolist(), *part.errors.column("id").to_pylist()}
        assert kept <= set(part.input_ids.tolist())
    # the next stage repeats the rows of each slice, and Ray joins the results in any order
    repeated = [twice(part) for part in parts]
    again = joined_by_ray(encode(one) for one in data.draw(st.permutations(repeated)))
    assert totals([decode(again)]) == totals(repeated)
    assert totals(repeated)["shares"] == totals(given_)["shares"]


def twice(batch: RowBatch) -> RowBatch:
    """Return the batch after a step that repeats every row and fails every third one."""
    rows = np.arange(len(batch.ids))
    parents = np.repeat(rows[rows % 3 != 2], 2)
    errors = [(row, failed(0, 0).errors.set_column(0, "id", pa.array([batch.ids[row]])))
              for row in rows[rows % 3 == 2].tolist()]  # fmt: skip
    return batch.derived(batch.table.take(parents), parents, errors)


def test_only_divided_rows_have_shares() -> None:
    batch = merged([good(0, 0, [1, 2]), failed(0, 2), filtered(0, 3)])
    assert SHARE not in encode(batch).column_names
    divided = batch.derived(batch.table.take([0, 0, 1]), np.array([0, 0, 1]), [])
    block = encode(divided)
    half = FULL_SHARE // 2
    assert block.column(SHARE).to_pylist() == [half, half, FULL_SHARE, None, None]
    assert decode(block).shares is None
    assert shares_of(decode(block.slice(1))) == {0: half, 1: FULL_SHARE, 2: FULL_SHARE,
                                                 pack_id(0, 3): FULL_SHARE}  # fmt: skip


def test_share_is_divided_without_remainder() -> None:
    batch = replace(good(0, 0, [1, 2]), shares=np.array([7, 1]))
    parents = np.array([0, 0, 0, 1, 1])
    block = encode(batch.derived(batch.table.take(parents), parents, []))
    assert block.column(SHARE).to_pylist() == [3, 2, 2, 1, 0]


def test_sidecar_exists_only_if_a_row_or_file_has_ended() -> None:
    rows = good(0, 0, [1, 2])
    assert SIDECAR not in encode(rows).column_names
    for other in (end(0, 2), filtered(0, 2), RowBatch(notes=(("own", "{}"),))):
        assert has_data(encode(merged([rows, other]))).tolist() == [True, True, False]
        assert has_data(encode(other)).tolist() == [False]
    assert plain(decode(encode(RowBatch()))) == plain(RowBatch())


@pytest.mark.parametrize("files", [10, 10_000])
def test_only_large_sidecars_are_compressed(files: int) -> None:
    batch = RowBatch(ends=tuple((file, 1) for file in range(files)))
    (content,) = encode(batch).column(SIDECAR).drop_null().to_pylist()
    plain = np.array(batch.ends, np.int64).nbytes
    assert (plain > COMPRESSED_BYTES) == (len(content) < plain)
    assert decode(encode(batch)).ends == batch.ends


def test_filtered_and_failed_rows_count_in_ray_blocks() -> None:
    """Ray collects a number of rows for each write task."""
    some = [failed(0, row) for row in range(5)]
    many = filtered(0, *range(10, 10 + 3 * ROWS_PER_EMPTY_ROW))
    for batch in (merged(some), merged([good(0, 100, [1, 2]), *some])):
        assert encode(batch).num_rows == len(batch.input_ids) + 1
        assert plain(decode(encode(batch))) == plain(batch)
    assert encode(many).num_rows == 3 + 1
    assert plain(decode(encode(many))) == plain(many)


def test_rows_without_columns_are_kept() -> None:
    empty = pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array([{}, {}]))])
    assert empty.num_rows == 2
    for batch in (good(0, 0, empty), merged([good(0, 0, empty), end(0, 2)])):
        assert plain(decode(encode(batch))) == plain(batch)


def test_decoding_does_not_copy_adjacent_rows() -> None:
    files = [merged([good(file, 0, [1, 2, 3]), end(file, 3)]) for file in range(2)]
    column = decode(concat([encode(batch) for batch in files]).combine_chunks()).table.column("n")
    assert column.to_pylist() == [1, 2, 3, 1, 2, 3]
    first, second = (chunk.buffers()[1].address for chunk in column.chunks)
    assert first == second


# --- tensors and other values among sidecar rows -----------------------------------------

SHAPES = {"vectors": (4,), "pixels": (2, 3, 3), "one number": (1,)}
KINDS = [
    *(pytest.param(shape, dtype, id=f"{name} of {dtype}") for name, shape in SHAPES.items()
      for dtype in ("float32", "uint8", "bool")),
    pytest.param((3,), "<U5", id="texts"),
    pytest.param(None, "float32", id="of several shapes"),
]  # fmt: skip
PRESENT = [True, True, False, True, False, False, True, True, True, False, True, True]


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
    """Return a block with rows of tensors, and sidecar rows where `present` is False."""
    rows = [good(0, row, to_table({"tensor": tensors([row], shape, dtype)})) if there
            else end(0, row) for row, there in enumerate(present)]  # fmt: skip
    full = joined_by_ray(map(encode, rows))
    assert full.column("tensor").num_chunks == 1
    return full


def same(result: Any, expected: Any) -> bool:
    return len(result) == len(expected) and all(
        np.array_equal(np.asarray(one), np.asarray(other))
        for one, other in zip(result, expected, strict=True)
    )


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_slices_hold_the_tensors_of_their_rows(shape: tuple[int, ...] | None, dtype: str) -> None:
    full = with_ends(PRESENT, shape, dtype)
    for start in range(len(PRESENT)):
        for stop in range(start + 1, len(PRESENT) + 1):
            numbers = [row for row in range(start, stop) if PRESENT[row]]
            if not numbers:
                continue
            part = decode(full.slice(start, stop - start))
            assert part.ids.tolist() == numbers
            expected = tensors(numbers, shape, dtype)
            assert same(to_batch(part.table)["tensor"], expected)
            assert same(values_of(part.table.column("tensor")), expected)
            assert same([row["tensor"] for row in rows_of(part.table)], expected)
            lists = tensors_to_lists(part.table).column("tensor").to_pylist()
            assert same(lists, [tensor.tolist() for tensor in expected])


def test_tensors_after_null_rows_keep_their_rows() -> None:
    values = [np.full(3, 0.0), None, None, np.full(3, 3.0), np.full(3, 4.0)]
    parts = [pa.table({"n": [n]}) if value is None else to_table({"n": [n], "x": value[None]})
             for n, value in enumerate(values)]  # fmt: skip
    chunks = transform_pyarrow.combine_chunks(concat(parts))
    assert same(to_batch(chunks.slice(3))["x"], values[3:])
    assert [None if x is None else x[0] for x in to_batch(chunks.slice(1))["x"]] == [
        None, None, 3.0, 4.0
    ]  # fmt: skip


# --- columns that a step leaves null in one block and fills in another --------------------

VALUES: dict[str, Any] = {
    "vectors": np.ones((4, 3)),
    "pixels": np.ones((4, 2, 2, 3), np.uint8),
    "several shapes": [np.ones((n, 2)) for n in range(1, 5)],
    **{"texts": ["a", "b", "c", "d"], "lists": [[1.0], [2.0], [3.0], [4.0]]},
    "numbers": [1, 2, 3, 4],
}


def runner(callable_: str, **fields: Any) -> Run:
    document = {"name": "own", "python": {"callable": f"user_code:{callable_}"}, **fields}
    stage = Stage("own", (Step.model_validate(document),))
    return as_one_batch(SegmentRunner([stage], ErrorHandling(False, Location("/none"))))


def numbered(first: int, count: int) -> RowBatch:
    numbers = np.arange(first, first + count)
    return good(0, first, pa.table({"n": numbers, "after": numbers}))


@pytest.fixture(params=VALUES)
def values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the values that the step `some` gives numbers from 4. Lower numbers get null."""
    import user_code

    given_ = VALUES[request.param]

    def some(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        none = [None] * len(batch["n"])
        result = none if (batch["n"] < 4).all() else given_[: len(none)]
        return {"n": batch["n"], "found": result, "after": batch["after"]}

    monkeypatch.setattr(user_code, "some", some, raising=False)
    return given_


@pytest.mark.parametrize("order", [[0, 4], [4, 0]], ids=["nulls first", "nulls last"])
def test_blocks_and_batches_can_be_joined(values: Any, order: list[int]) -> None:
    numbers = [number for first in order for number in range(first, first + 4)]
    given_ = [numbered(first, 4) for first in order]
    run, small = runner("some"), runner("some", batchSize=4)
    for result in (decode(joined_by_ray(encode(run(b)) for b in given_)), small(merged(given_))):
        assert result.table.column_names == ["n", "found", "after"]
        assert result.table.column("n").to_pylist() == numbers
        assert result.table.column("after").to_pylist() == numbers
        valid = result.table.column("found").is_valid()
        assert valid.to_pylist() == [number >= 4 for number in numbers]
        filled = result.table.filter(valid).select(["found"])
        assert same(to_batch(filled)["found"], values)


def test_column_without_values_keeps_its_place() -> None:
    nulls = pa.table({"a": pa.nulls(2), "n": [1, 2], "found": pa.nulls(2), "last": pa.nulls(2)})
    parts = [good(0, 0, nulls), good(0, 2, nulls), end(0, 4)]
    full = joined_by_ray(map(encode, parts))
    assert NULLS in full.column_names
    assert decode(full).table.equals(concat([nulls, nulls]))


def test_columns_with_values_are_unchanged() -> None:
    table = to_table({"x": np.ones((2, 3)), "y": [None, 1.0]})
    assert NULLS not in encode(good(0, 0, table)).column_names
    assert decode(encode(good(0, 0, table))).table.equals(table)
    assert outcomes(decode(encode(good(0, 0, table)))) == {0: "good", 1: "good"}


@pytest.mark.parametrize(
    ("given", "max_bytes", "expected"),
    [
        ([10], 1 << 20, [4, 3, 3]),
        ([1, 1, 1, 1, 1, 1], 1 << 20, [3, 3]),
        ([3, 3, 3], 1 << 20, [4, 5]),
        ([3, 3, 3], 3 * 8, [3, 3, 3]),
        ([0, 10, 0], 10 * 8, [5, 5]),
        ([12], 2 * 8, [2] * 6),
        ([4] * 15, 1 << 20, [4, 4, 4, 8, 8, 8, 12, 12]),
        ([], 1 << 20, []),
    ],
)
def test_blocks_of_a_reader_have_their_rows_or_bytes(
    given: list[int], max_bytes: int, expected: list[int]
) -> None:
    blocks = [pa.table({"n": np.arange(rows)}) for rows in given]
    sized = list(dataset.sized_blocks(iter(blocks), rows=4, expected=2, max_bytes=max_bytes))
    assert [block.num_rows for block in sized] == expected
    values = [value for block in sized for value in block.column("n").to_pylist()]
    assert values == [value for rows in given for value in range(rows)]
