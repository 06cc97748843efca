"""Columns that a step leaves null in one block and fills with tensors in another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.data._internal.arrow_ops import transform_pyarrow

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat, to_batch, to_table
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.steps import Step
from support.inputs.read_files import data_of

VALUES: dict[str, Any] = {
    "vectors": np.ones((4, 3)),
    "pixels": np.ones((4, 2, 2, 3), np.uint8),
    "several shapes": [np.ones((n, 2)) for n in range(1, 5)],
    **{"texts": ["a", "b", "c", "d"], "lists": [[1.0], [2.0], [3.0], [4.0]]},
    "numbers": [1, 2, 3, 4],
}


def runner(callable_: str, **fields: Any) -> StageRunner:
    document = {"name": "own", "python": {"callable": f"user_code:{callable_}"}, **fields}
    stage = Stage("own", (Step.model_validate(document),))
    return StageRunner(stage, ErrorHandling(False, Location("/none")))


def table(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    return row_ids.with_ids(pa.table({"n": numbers, "after": numbers}), 0, first)


def joined_by_ray(tables: list[pa.Table]) -> pa.Table:
    """Concatenate blocks as Ray does between stages."""
    whole = transform_pyarrow.concat(tables, promote_types=True, preserve_order=True)
    return transform_pyarrow.combine_chunks(whole)


@pytest.fixture(params=VALUES)
def values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the values that the step `some` gives numbers from 4. Lower numbers get null."""
    import user_code

    given = VALUES[request.param]

    def some(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        none = [None] * len(batch["n"])
        found = none if (batch["n"] < 4).all() else given[: len(none)]
        return {"n": batch["n"], "found": found, "after": batch["after"]}

    def columns(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"columns": [",".join(batch)] * len(batch["n"])}

    monkeypatch.setattr(user_code, "some", some, raising=False)
    monkeypatch.setattr(user_code, "columns", columns, raising=False)
    return given


def check(result: pa.Table, values: Any, numbers: list[int]) -> None:
    good, _ = row_ids.split(result)
    assert row_ids.data_columns(good) == ["n", "found", "after"]
    assert good.column("n").to_pylist() == numbers
    assert good.column("after").to_pylist() == numbers
    valid = good.column("found").is_valid().to_pylist()
    assert valid == [number >= 4 for number in numbers]
    filled = good.filter(pa.array(valid)).select(["found"])
    for found, value in zip(to_batch(filled)["found"], values, strict=True):
        assert np.array_equal(found, value)


@pytest.mark.parametrize("order", [[0, 4], [4, 0]], ids=["nulls first", "nulls last"])
def test_blocks_and_batches_can_be_joined(values: Any, order: list[int]) -> None:
    numbers = [number for first in order for number in range(first, first + 4)]
    run = runner("some")
    check(joined_by_ray([run(table(first, 4)) for first in order]), values, numbers)
    block = concat([table(first, 4) for first in order])
    check(runner("some", batchSize=4)(block), values, numbers)


def test_next_step_gets_the_column_in_every_block(values: Any) -> None:
    for first in (0, 4):
        result = runner("columns")(runner("some")(table(first, 4)))
        assert data_of([result]) == [{"columns": "n,found,after"}] * 4


def test_column_without_values_keeps_its_place(values: Any) -> None:
    run = runner("some")
    whole = joined_by_ray([run(table(0, 2)), run(table(2, 2)), row_ids.end_of_file(0, 4)])
    good, rest = row_ids.split(whole)
    assert good.select(row_ids.data_columns(good)).to_pylist() == [
        {"n": n, "found": None, "after": n} for n in range(4)
    ]
    assert rest is not None
    assert row_ids.NULLS not in rest.column_names


def test_columns_with_values_are_unchanged() -> None:
    whole = row_ids.with_ids(to_table({"x": np.ones((2, 3)), "y": [None, 1.0]}), 0, 0)
    assert row_ids.closed(whole) is whole
