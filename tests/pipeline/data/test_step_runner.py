"""A stage: steps run in order over tables in which each row has a state."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.execution.step_runner import (
    TRACEBACK_LINES,
    WAITS,
    ErrorHandling,
    StageRunner,
)
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.steps import Step
from support.inputs.read_files import data_of, own_columns
from support.tiers import examples

PICKY = {"name": "picky", "python": {"callable": "user_code:picky"}}
TOLERANT = ErrorHandling(tolerant=True, input=Location("/nowhere/input.parquet"))


def runner(*steps: dict[str, Any], errors: ErrorHandling = TOLERANT) -> StageRunner:
    stage = Stage("stage", tuple(Step.model_validate(step) for step in steps))
    return StageRunner(stage, errors)


def table(*texts: str, first: int = 0) -> pa.Table:
    return row_ids.with_ids(pa.table({"text": list(texts)}), 3, first)


def states_of(result: pa.Table) -> dict[int, int]:
    """Return states by row number. All ids must be of file 3."""
    own = own_columns(result)
    assert {row[row_ids.ID] >> row_ids.ROW_BITS for row in own} <= {3}
    return {row[row_ids.ID] - row_ids.pack(3, 0): row[row_ids.STATE] for row in own}


def test_steps_run_in_order() -> None:
    run = runner(
        {"name": "long", "filter": "len(text) > 1"},
        {"name": "lengths", "python": {"callable": "user_code:lengths"}},
        {"name": "slim", "dropColumns": ["text"]},
    )
    result = run(table("aa", "b", "ccc"))
    assert data_of([result]) == [{"length": 2}, {"length": 3}]
    assert states_of(result) == {0: row_ids.GOOD, 1: row_ids.SKIPPED, 2: row_ids.GOOD}


def test_exception_fails_its_row_with_a_traceback() -> None:
    result = runner(PICKY)(table("a", "bad one", "c"))
    assert data_of([result]) == [{"text": "a", "upper": "A"}, {"text": "c", "upper": "C"}]
    assert states_of(result) == {0: row_ids.GOOD, 1: row_ids.FAILED, 2: row_ids.GOOD}
    (failed,) = [row for row in own_columns(result) if row[row_ids.STATE] == row_ids.FAILED]
    assert failed[row_ids.STEP] == "picky"
    assert failed[row_ids.ERROR] == "ValueError: cannot take bad one"
    assert failed[row_ids.TRACEBACK].startswith("Traceback (most recent call last)")
    assert failed[row_ids.TRACEBACK].endswith("ValueError: cannot take bad one\n")
    assert "user_code.py" in failed[row_ids.TRACEBACK]


def test_long_traceback_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import user_code

    def deep(depth: int) -> None:
        if depth == 0:
            raise ValueError("at the bottom")
        deep(depth - 1)

    monkeypatch.setattr(user_code, "deep", lambda batch: deep(50), raising=False)
    step = {"name": "deep", "python": {"callable": "user_code:deep"}}
    (failed,) = own_columns(runner(step)(table("a")))
    assert failed[row_ids.TRACEBACK].endswith("ValueError: at the bottom\n")
    assert failed[row_ids.TRACEBACK].count("\n") < 4 * TRACEBACK_LINES


def test_first_failed_row_ends_a_job_without_tolerance(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").touch()
    kept = Location(str(tmp_path / "input.parquet"))
    run = runner(PICKY, errors=ErrorHandling(tolerant=False, input=kept))
    # the input snapshot is read only after a failure
    assert states_of(run(table("a", "b"))) == {0: row_ids.GOOD, 1: row_ids.GOOD}
    kept.write(snapshot_input([f"{tmp_path}/*.txt"], []).serialized())
    with pytest.raises(JobFailure) as failure:
        run(table("good", "bad one", "bad two", first=10))
    place = f"step 'picky' failed on row 11 of {tmp_path}/d.txt"
    assert failure.value.message == f"{place}: ValueError: cannot take bad one"
    assert isinstance(failure.value.__cause__, ValueError)


class Flaky:
    """Code that fails a given number of times."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left, self.error = times, error

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.left > 0:
            self.left -= 1
            raise self.error
        return batch


@pytest.mark.parametrize("times", [1, len(WAITS), len(WAITS) + 1])
@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("cut")], ids=repr)
def test_connection_errors_are_retried(
    monkeypatch: pytest.MonkeyPatch, times: int, error: Exception
) -> None:
    import user_code

    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(user_code, "flaky", Flaky(times, error), raising=False)
    run = runner({"name": "flaky", "python": {"callable": "user_code:flaky"}})
    if times > len(WAITS):
        with pytest.raises(JobFailure, match="step 'flaky' cannot continue: "):
            run(table("a", "b"))
    else:
        assert states_of(run(table("a", "b"))) == {0: row_ids.GOOD, 1: row_ids.GOOD}
    assert slept == list(WAITS)[:times]


def test_job_failure_and_load_error_are_raised() -> None:
    with pytest.raises(JobFailure, match="step 'slim' reads column 'none'"):
        runner({"name": "slim", "dropColumns": ["none"]})(table("a", "b"))
    with pytest.raises(ModelLoad, match="cannot load 'user_code:none'"):
        runner({"name": "s", "python": {"callable": "user_code:none"}})


def test_rows_of_other_states_pass_through() -> None:
    before = [
        row_ids.failed_row(row_ids.pack(3, 7), "read", ValueError("broken"), "trace"),
        row_ids.skipped_rows(pa.chunked_array([pa.array([row_ids.pack(3, 8)])])),
        row_ids.end_of_file(3, 9),
    ]
    result = runner(PICKY)(concat([table("a", "bad"), *before]))
    assert states_of(result) == {
        **{
            0: row_ids.GOOD,
            1: row_ids.FAILED,
            7: row_ids.FAILED,
            8: row_ids.SKIPPED,
            9: row_ids.END,
        }
    }
    errors = {row[row_ids.ID] & 255: row.get(row_ids.ERROR) for row in own_columns(result)}
    assert errors[7] == "ValueError: broken"
    assert errors[1] == "ValueError: cannot take bad"


def test_table_without_good_rows_is_unchanged() -> None:
    only_end = row_ids.end_of_file(3, 0)
    assert runner(PICKY, {"name": "all", "filter": "text == 'a'"})(only_end).equals(only_end)


def test_dropped_column_is_absent_from_other_rows() -> None:
    """A batch may hold only end-of-file rows that were sliced from a block with data columns."""
    only_end = concat([table("a"), row_ids.end_of_file(3, 1)]).slice(1)
    assert "text" in only_end.column_names
    result = runner({"name": "slim", "dropColumns": ["text"]})(only_end)
    assert row_ids.data_columns(result) == []


def test_filtered_rows_keep_their_ids() -> None:
    expected = {"text != 'b'": "ac", "text == 'none'": "", "text is not None": "abc"}
    for expression, kept in expected.items():
        result = runner({"name": "f", "filter": expression})(table("a", "b", "c"))
        assert states_of(result) == {
            number: row_ids.GOOD if text in kept else row_ids.SKIPPED
            for number, text in enumerate("abc")
        }
        assert [row["text"] for row in data_of([result])] == list(kept)


def test_filter_overflow_fails_its_row() -> None:
    numbers = row_ids.with_ids(pa.table({"n": [1, 2**63 - 1, 3, -5]}), 3, 0)
    result = runner({"name": "f", "filter": "n + 1 > 0"})(numbers)
    assert states_of(result) == {
        0: row_ids.GOOD,
        1: row_ids.FAILED,
        2: row_ids.GOOD,
        3: row_ids.SKIPPED,
    }
    (failed,) = [row for row in own_columns(result) if row[row_ids.STATE] == row_ids.FAILED]
    assert (failed[row_ids.STEP], failed[row_ids.ERROR]) == ("f", "ArrowInvalid: overflow")


def test_path_too_short_for_its_label_fails_its_row() -> None:
    paths = row_ids.with_ids(pa.table({"path": ["/a/b/c", "c"]}), 3, 0)
    label = {"name": "label", "labelFromPath": {"column": "folder", "index": -2}}
    result = runner(label)(paths)
    assert data_of([result]) == [{"path": "/a/b/c", "folder": "b"}]
    assert states_of(result)[1] == row_ids.FAILED


def test_batch_size_of_a_step_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    import user_code

    seen: list[int] = []

    def watch(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(len(batch["text"]))
        return batch

    monkeypatch.setattr(user_code, "watch", watch, raising=False)
    step = {"name": "watch", "python": {"callable": "user_code:watch"}}
    for size, calls in ((None, [5]), (2, [2, 2, 1]), (5, [5]), (100, [5])):
        seen.clear()
        result = runner(step | ({"batchSize": size} if size else {}))(table(*"abcde"))
        assert seen == calls, size
        assert [row["text"] for row in data_of([result])] == list("abcde")


def test_stage_can_be_pickled() -> None:
    stage = Stage("stage", (Step.model_validate(PICKY),))
    travelled = pickle.loads(pickle.dumps((stage, TOLERANT)))
    assert states_of(StageRunner(*travelled)(table("a", "bad"))) == {
        0: row_ids.GOOD,
        1: row_ids.FAILED,
    }


WORDS = st.sampled_from(["a", "bb", "bad", "really bad", "c"])


@settings(max_examples=examples(60), deadline=None)
@given(
    texts=st.lists(WORDS, min_size=1, max_size=40),
    size=st.none() | st.integers(1, 10),
    cuts=st.integers(1, 10),
)
def test_each_row_has_one_state_for_any_batches(
    texts: list[str], size: int | None, cuts: int
) -> None:
    run = runner(
        PICKY | ({"batchSize": size} if size else {}), {"name": "short", "filter": "len(upper) < 2"}
    )
    whole = table(*texts)
    results = [run(whole.slice(start, cuts)) for start in range(0, len(texts), cuts)]
    expected = {"a": row_ids.GOOD, "c": row_ids.GOOD, "bb": row_ids.SKIPPED}
    assert states_of(concat(results)) == {
        number: expected.get(text, row_ids.FAILED) for number, text in enumerate(texts)
    }
    assert sum(result.num_rows for result in results) == len(texts)
    assert [row["upper"] for row in data_of(results)] == [
        text.upper() for text in texts if expected.get(text) == row_ids.GOOD
    ]
