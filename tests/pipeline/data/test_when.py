"""`when`: a step runs for the rows for which a condition is true, and skips the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.arrow import tensors_to_lists, to_table, with_column
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.step_runner import ChosenRows, StepRunner
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.steps import with_condition
from batchinference.pipeline.steps.column_checks import type_problems
from batchinference.pipeline.steps.transform import Transform, as_result
from batchinference.plan.stages import stages_of
from batchinference.spec.reserved import PREPARED_PREFIX
from batchinference.spec.steps import Step
from support.documents.http_models import json_endpoint
from support.outputs.batches import as_one_batch, errors_of, good, outcomes, rows_of
from support.outputs.stages import TOLERANT, in_one_stage
from support.tiers import examples

DOUBLE = {"name": "double", "addColumns": {"twice": "n * 2"}}
CODE = {"name": "code", "python": {"callable": "user_code:add", "callArgs": {"amount": 10}}}
LETTERS = {"name": "letters", "python": {"callable": "user_code:letters", "method": "flatMap"}}
NAMES = {"name": "names", "labelFromPath": {"column": "label", "index": -2}}
DECODE = {"name": "decode", "decode": {"format": "text", "column": "bytes", "output": "decoded"}}
MODEL = {
    "name": "model",
    "model": {"runtime": "torch", "factory": "user_code:Affine", "inputs": {"features": "x"},
              "output": "y"},
}  # fmt: skip


def run(batch: RowBatch, *steps: dict[str, Any]) -> RowBatch:
    return in_one_stage(*steps)(batch)


def values(batch: RowBatch, column: str) -> list[Any]:
    return list(batch.table.column(column).to_pylist())


def skipped_rows(batch: RowBatch) -> list[int]:
    return sorted(row["id"] for row in batch.warnings.to_pylist() if row["name"] == "Skipped")


def test_skipped_rows_pass_with_null_in_added_columns() -> None:
    result = run(good(0, 0, [1, None, 3, 4]), {**DOUBLE, "when": "n > 2"})
    assert result.table.to_pydict() == {"n": [1, None, 3, 4], "twice": [None, None, 6, 8]}
    assert (result.ids.tolist(), skipped_rows(result)) == ([0, 1, 2, 3], [0, 1])


@pytest.mark.parametrize(
    ("kind", "expected"), [("integer", pa.int64()), ("text", pa.string()), ("numbers", pa.null())]
)
def test_column_of_a_step_that_runs_for_no_row_has_its_declared_type(
    kind: str, expected: pa.DataType
) -> None:
    model = json_endpoint(inputs={"value": "n"}, resultType=kind)
    result = run(good(0, 0, [1, 2]), {"name": "ask", "when": "n > 2", "model": model})
    assert result.table.schema.field("score").type == expected  # numbers may be tensors


def test_skipped_rows_keep_the_values_of_a_replaced_column() -> None:
    replaced = run(
        good(0, 0, [1, 2, 3]), {"name": "s", "addColumns": {"n": "n * 1.5"}, "when": "n > 2"}
    )
    assert values(replaced, "n") == [1.0, 2.0, 4.5]
    code = run(good(0, 0, [1, 2, 3]), {**CODE, "when": "n != 2"})
    assert values(code, "n") == [11, 2, 13]


def test_types_that_do_not_fit_end_the_job() -> None:
    with pytest.raises(JobFailure, match="no type holds both"):
        run(good(0, 0, [1, 2]), {"name": "s", "addColumns": {"n": "str(n)"}, "when": "n > 1"})


@pytest.mark.parametrize("numbers", [[1, 2], [5, 6], [5, 1]], ids=repr)
@pytest.mark.parametrize("step", [DOUBLE, CODE], ids=lambda step: step["name"])
def test_columns_do_not_depend_on_the_rows(step: dict[str, Any], numbers: list[int]) -> None:
    result = run(
        good(0, 0, pa.table({"n": pa.array(numbers, pa.int64())})), {**step, "when": "n > 3"}
    )
    expected = ["n", "twice"] if step is DOUBLE else ["n"]
    assert result.table.column_names == expected


def test_code_that_makes_other_rows() -> None:
    rows = good(0, 0, pa.table({"text": ["ab", "skip", "", "bad", "c"]}))
    result = run(rows, {**LETTERS, "when": "text != 'skip'"})
    assert [(row_id, row["letter"]) for row_id, row in rows_of(result)] == [
        (0, "a"), (0, "b"), (1, None), (4, "c")
    ]  # fmt: skip
    assert outcomes(result) == {0: "good", 1: "good", 2: "filtered", 3: "failed", 4: "good"}


def test_code_must_keep_columns() -> None:
    step = {
        "name": "s",
        "python": {"callable": "user_code:Scaler", "constructorArgs": {"factor": 2}},
    }
    rows = good(0, 0, pa.table({"n": [1, 2], "text": ["a", "b"]}))
    with pytest.raises(JobFailure, match="lacks column 'text'"):
        run(rows, {**step, "when": "n > 1"})


def test_rows_for_which_the_condition_fails() -> None:
    result = run(good(0, 0, [1, 2**62, 3]), {**DOUBLE, "when": "n * 4 > 8"})
    assert list(errors_of(result)) == [1]
    assert values(result, "twice") == [None, 6]
    texts = run(good(0, 0, ["a", "b"]), {**DOUBLE, "when": "n > 1"})
    assert list(errors_of(texts)) == [0, 1]


class Recorder(Transform):
    """Adds a column, and keeps the rows of its calls."""

    def __init__(self, limit: int = 1000) -> None:
        self.calls: list[list[int]] = []
        self._most = limit

    def __call__(self, batch: pa.Table) -> pa.Table:
        numbers = batch.column("n").to_pylist()
        if len(numbers) > self._most:
            raise MemoryError
        self.calls.append(numbers)
        return batch.append_column("y", pa.array([10 * number for number in numbers]))


def recorded(recorder: Recorder, rows: int, **fields: Any) -> RowBatch:
    step = Step.model_validate({**MODEL, **fields})
    runner = StepRunner(step, with_condition(step, recorder), TOLERANT)
    return as_one_batch(runner)(good(0, 0, pa.table({"n": range(rows), "x": range(rows)})))


def test_batches_of_a_model_are_full() -> None:
    recorder = Recorder()
    result = recorded(recorder, 100, when="n % 10 == 3", batchSize=4)
    assert recorder.calls == [[3, 13, 23, 33], [43, 53, 63, 73], [83, 93]]
    expected = [10 * n if n % 10 == 3 else None for n in range(100)]
    assert (values(result, "n"), values(result, "y")) == (list(range(100)), expected)


def test_memory_that_runs_out_halves_the_computed_rows() -> None:
    recorder = Recorder(limit=2)
    result = recorded(recorder, 40, when="n % 5 == 0", batchSize=8)
    assert recorder.calls == [[0, 5], [10, 15], [20, 25], [30, 35]]
    assert [note for step, note in result.notes if "out_of_memory_at" in note] != []


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40), st.integers(1, 9))
def test_stop_is_before_the_first_row_too_many(mask: list[bool], start: int, limit: int) -> None:
    start = min(start, len(mask))
    chosen = ChosenRows(np.array(mask, dtype=bool))
    stop = chosen.stop(start, limit)
    assert chosen.number(start, stop) == min(limit, sum(mask[start:]))
    assert stop == len(mask) or chosen.number(start, stop + 1) == limit + 1


NUMBERS = st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=20)
STEPS = st.sampled_from([DOUBLE, CODE])


@given(NUMBERS, STEPS)
@settings(max_examples=examples(100))
def test_true_condition_changes_nothing(numbers: list[int | None], step: dict[str, Any]) -> None:
    rows = good(0, 0, pa.table({"n": pa.array(numbers, pa.int64())}))
    plain, conditional = run(rows, step), run(rows, {**step, "when": "n is None or n == n"})
    assert conditional.table.equals(plain.table)
    assert (rows_of(conditional), outcomes(conditional)) == (rows_of(plain), outcomes(plain))


@given(NUMBERS)
@settings(max_examples=examples(100))
def test_condition_and_its_negation_are_one_step(numbers: list[int | None]) -> None:
    rows = good(0, 0, pa.table({"n": pa.array(numbers, pa.int64())}))
    step = {"name": "s", "addColumns": {"y": "(n if n is not None else 0) + 1"}}
    first = {**step, "when": "n > 0"}
    second = {**step, "name": "t", "when": "not n > 0 or n is None"}
    assert values(run(rows, first, second), "y") == values(run(rows, step), "y")


def test_labels_texts_and_tensors() -> None:
    table = to_table({"path": np.array(["a/b.txt", "c/d.txt"], object),
                      "bytes": np.array([b"x", b"\xff"], object),
                      "pixels": np.zeros((2, 2, 2), np.uint8)})  # fmt: skip
    rows = good(0, 0, table)
    result = run(rows, {**NAMES, "when": "startswith(path, 'c')"},
                 {**DECODE, "when": "startswith(path, 'a')"})  # fmt: skip
    assert values(result, "label") == [None, "c"]
    assert values(result, "decoded") == ["x", None]
    assert result.table.column("pixels").type == table.column("pixels").type


@pytest.mark.parametrize("made", ["tensor", "null"])
@pytest.mark.parametrize("old", ["tensor", "null", "none"])
def test_tensors_and_nulls_are_joined(made: str, old: str) -> None:
    columns = {"tensor": to_table({"y": np.ones((3, 2))}).column(0), "null": pa.nulls(3)}

    class Make(Transform):
        def __call__(self, batch: pa.Table) -> pa.Table:
            return with_column(batch, "y", columns[made].slice(0, batch.num_rows))

    step = Step.model_validate({**MODEL, "when": "n == 1"})
    table = pa.table({"n": [0, 1, 2], "x": [0, 1, 2]})
    table = table if old == "none" else table.append_column("y", columns[old])
    result = tensors_to_lists(with_condition(step, Make())(table)).column("y").to_pylist()
    values = {"tensor": [1.0, 1.0], "null": None, "none": None}
    assert result == [values[old], values[made], values[old]]


def test_preparation_adds_only_its_hidden_columns() -> None:
    class Prepare(Transform):
        def __call__(self, batch: pa.Table) -> pa.Table:
            return batch.append_column(PREPARED_PREFIX + "tokens", batch.column("x"))

    step = Step.model_validate({**MODEL, "when": "n == 1"})
    prepare = with_condition(step, Prepare(), adds={})
    tables = [pa.table({"n": pair, "x": [5, 6]}) for pair in ([0, 0], [1, 1], [0, 1])]
    columns = [as_result(prepare(table)).table.to_pydict() for table in tables]
    assert columns[0] == {"n": [0, 0], "x": [5, 6]}
    assert columns[1] == {"n": [1, 1], "x": [5, 6], PREPARED_PREFIX + "tokens": [5, 6]}
    assert columns[2] == {"n": [0, 1], "x": [5, 6], PREPARED_PREFIX + "tokens": [None, 6]}


def test_hidden_columns_do_not_leave_the_step() -> None:
    step = Step.model_validate({**MODEL, "when": "n > 1"})
    table = pa.table({"n": [0, 1], "x": [0, 1], PREPARED_PREFIX + "tokens": [[1], [2]]})
    result = with_condition(step, Recorder())(table)
    assert result.column_names == ["n", "x", "y"]


@pytest.mark.parametrize(
    ("step", "path"),
    [
        ({**DOUBLE, "when": "text > 3"}, "spec.steps[0].when"),
        ({**DOUBLE, "when": "n + 1"}, "spec.steps[0].when"),
        ({**DOUBLE, "addColumns": {"n": "str(n)"}, "when": "n > 3"}, "spec.steps[0].addColumns"),
        ({**DOUBLE, "when": "n > 3"}, None),
    ],
)
def test_types_are_checked_before_the_job(step: dict[str, Any], path: str | None) -> None:
    types = {"n": pa.int64(), "text": pa.string()}
    problems = list(type_problems([Step.model_validate(step)], types))
    assert [problem.path for problem in problems] == ([path] if path else [])


def test_columns_of_a_condition_are_kept_until_the_step() -> None:
    drop = {"name": "drop", "dropColumns": ["score"]}
    steps = [Step.model_validate(step) for step in ({**DOUBLE, "when": "score > 1"}, drop)]
    (stage,) = stages_of(steps)
    assert [step.name for step in stage.steps] == ["double", "drop"]
