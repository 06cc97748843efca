"""A stage: steps run in order over batches, and each row succeeds, fails or is filtered."""

from __future__ import annotations

import json
import pickle
import platform
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference import credentials
from batchinference.credentials import SecretVariables
from batchinference.pipeline import step_time
from batchinference.pipeline.arrow import to_table
from batchinference.pipeline.errors import (
    DeviceFailed,
    EngineDied,
    JobFailure,
    TooManyErrors,
    describe,
)
from batchinference.pipeline.execution import crash_notes, step_runner
from batchinference.pipeline.execution.dataset import BlockReader
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import (
    TRACEBACK_LINES,
    ErrorHandling,
    SegmentRunner,
    StepRunner,
)
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.output.error_records import MAX_VALUE, values_as_json
from batchinference.pipeline.report.builder import collect_notes
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.row_warnings import warn
from batchinference.pipeline.rows_in_flight import Unanswered
from batchinference.pipeline.step_time import SharedClock, StepTime
from batchinference.pipeline.steps.transform import TransformResult
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.steps import Step
from batchinference.spec.warnings import WarningName
from support.outputs.batches import end, errors_of, failed, filtered, good, outcomes, rows_of
from support.outputs.stages import TOLERANT
from support.outputs.stages import in_one_stage as runner
from support.tiers import examples

PICKY = {"name": "picky", "python": {"callable": "user_code:picky"}}
WITHOUT_WAITS = replace(TOLERANT, waits=())
LINE = "(user_code.py:30 in picky)"
"""The line of the step's code that raises."""


def batch(*texts: str, first: int = 0) -> RowBatch:
    return good(0, first, pa.table({"text": list(texts)}))


def texts_of(result: RowBatch) -> list[str]:
    return list(result.table.column("text").to_pylist()) if len(result.ids) else []


def test_exception_fails_its_row_with_a_traceback() -> None:
    result = runner(PICKY)(batch("a", "bad one", "c"))
    assert result.table.to_pylist() == [{"text": "a", "upper": "A"}, {"text": "c", "upper": "C"}]
    assert outcomes(result) == {0: "good", 1: "failed", 2: "good"}
    (row,) = result.errors.to_pylist()
    assert (row["step"], row["error"]) == ("picky", f"ValueError: cannot take bad one {LINE}")
    assert row["traceback"].startswith("Traceback (most recent call last)")
    assert row["traceback"].endswith("ValueError: cannot take bad one\n")
    assert "user_code.py" in row["traceback"]


@pytest.mark.parametrize("values", [True, False])
def test_failed_row_may_keep_its_values(values: bool) -> None:
    steps = [{"name": "lengths", "python": {"callable": "user_code:lengths"}}, PICKY]
    run = runner(*steps, errors=replace(TOLERANT, values=values))
    result = run(batch("a", "bad one", "c", "bad two"))
    actual = [row["values"] and json.loads(row["values"]) for row in result.errors.to_pylist()]
    expected = [{"text": "bad one", "length": 7}, {"text": "bad two", "length": 7}]
    assert actual == (expected if values else [None, None])


def test_values_of_a_failed_row_are_short() -> None:
    columns = {"image": np.zeros((1, 2, 3), np.uint8), "bytes": [b"abc"], "text": ["x" * 5000],
               "numbers": [list(range(5000))], "few": [[1, None]], "none": pa.nulls(1)}  # fmt: skip
    document = json.loads(values_as_json(to_table(columns)))
    assert (document["image"], document["bytes"]) == ("<uint8 array of shape (2, 3)>", "<3 bytes>")
    assert (document["few"], document["none"]) == ([1, None], None)
    for name, beginning in (("text", "xxx"), ("numbers", "[0, 1, 2")):
        assert document[name].startswith(beginning)
        assert len(document[name]) <= MAX_VALUE


def test_values_of_a_failed_row_have_no_secrets() -> None:
    secret = "hf_" + "a" * 20
    columns = {"text": [f"token={secret}"], "long": ["x" * 5000 + " " + secret], "list": [[secret]],
               "struct": [{"password": secret, "n": 1}], "plain": ["two\nlines"],
               "db_password": ["hunter2"], "tokens": [["a"]]}  # fmt: skip
    text = values_as_json(to_table(columns))
    assert secret not in text
    document = json.loads(text)
    assert (document["text"], document["plain"]) == ("token=***", "two\nlines")
    assert (document["db_password"], document["tokens"]) == ("***", ["a"])


def test_long_traceback_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import user_code

    def deep(depth: int) -> None:
        if depth == 0:
            raise ValueError("at the bottom")
        deep(depth - 1)

    monkeypatch.setattr(user_code, "deep", lambda batch: deep(50), raising=False)
    step = {"name": "deep", "python": {"callable": "user_code:deep"}}
    (text,) = runner(step)(batch("a")).errors.column("traceback").to_pylist()
    assert text.endswith("ValueError: at the bottom\n")
    assert text.count("\n") < 4 * TRACEBACK_LINES


def test_first_failed_row_ends_a_job_without_tolerance(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").touch()
    kept = Location(str(tmp_path / "input.parquet"))
    run = runner(PICKY, errors=ErrorHandling(tolerant=False, input=kept))
    # the input snapshot is read only after a failure
    assert outcomes(run(batch("a", "b"))) == {0: "good", 1: "good"}
    kept.write(snapshot_input([f"{tmp_path}/*.txt"], []).serialized())
    with pytest.raises(JobFailure) as failure:
        run(good(3, 10, pa.table({"text": ["good", "bad one", "bad two"]})))
    text = f"step 'picky' failed on row 11 of {tmp_path}/d.txt"
    assert failure.value.message == f"{text}: ValueError: cannot take bad one {LINE}"
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


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionResetError("cut")], ids=repr)
def test_connection_errors_are_retried(
    monkeypatch: pytest.MonkeyPatch, times: int, error: Exception
) -> None:
    import user_code

    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(user_code, "flaky", Flaky(times, error), raising=False)
    step = {"name": "flaky", "python": {"callable": "user_code:flaky"}}
    run = runner(step, errors=replace(TOLERANT, waits=(2.0, 3.0)))
    if times > 2:
        with pytest.raises(JobFailure, match="step 'flaky' cannot continue: "):
            run(batch("a", "b"))
    else:
        assert outcomes(run(batch("a", "b"))) == {0: "good", 1: "good"}
    assert slept == [2.0, 3.0][:times]


@pytest.mark.parametrize(
    ("text", "kind", "machine"),
    [
        ("CUDA error: ECC error", DeviceFailed, "gpu-1"),
        ("CUDA error: ECC error", DeviceFailed, ""),
        ("CUDA error: device-side assert", EngineDied, ""),
        ("HIP error: an illegal memory access was encountered", EngineDied, ""),
        ("Triton Error [CUDA]: misaligned address", EngineDied, ""),
    ],
)
def test_fault_of_a_device_is_no_failed_row(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[JobFailure], machine: str
) -> None:
    import user_code

    monkeypatch.setattr(user_code, "flaky", Flaky(1, RuntimeError(text)), raising=False)
    monkeypatch.setattr(step_runner, "node_of_this_process", lambda: "node-1")
    monkeypatch.setattr(platform, "node", lambda: "pod-1")
    if machine:
        monkeypatch.setenv("BATCHINFERENCE_NODE", machine)
    step = {"name": "flaky", "python": {"callable": "user_code:flaky"}}
    with pytest.raises(kind, match=rf"step 'flaky'.*{re.escape(text)}") as raised:
        runner(step)(batch("a", "b"))
    if isinstance(raised.value, DeviceFailed):
        assert f"the node {machine or 'pod-1'} failed" in raised.value.message
        document = pickle.loads(pickle.dumps(raised.value))
        assert (document.node, document.machine) == ("node-1", machine)


def test_note_remains_if_the_process_must_end_after_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are computed then are suspects for the next process."""
    import user_code

    left: list[tuple[str, str]] = []
    monkeypatch.setattr(crash_notes, "put_note", lambda *note: left.append(note))
    monkeypatch.setattr(crash_notes, "remove_note", lambda _: left.clear())
    fail = Mock(side_effect=[pa.table({"n": [1]}), RuntimeError("CUDA error: device-side assert")])
    monkeypatch.setattr(user_code, "failing", fail, raising=False)
    step = {"name": "own", "python": {"callable": "user_code:failing"}, "batchSize": 1}
    run = runner(step)
    with pytest.raises(EngineDied), crash_notes.storing_notes("run"):
        run(batch("a", "b"))
    assert len(left) == 1


def test_device_may_fail_while_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import user_code

    class Model:
        def __init__(self) -> None:
            raise RuntimeError("CUDA error: ECC error")

    monkeypatch.setattr(user_code, "Model", Model, raising=False)
    with pytest.raises(DeviceFailed, match=r"step 'own'.*ECC error"):
        runner({"name": "own", "python": {"callable": "user_code:Model"}})


def test_batch_with_too_many_failed_rows_ends_with_their_records() -> None:
    calls: list[int] = []

    def refuse(rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        raise ValueError("no")

    step = Step.model_validate(PICKY)
    run = StepRunner(step, refuse, replace(TOLERANT, max_rows=3))
    results = run(batch(*"x" * 1000))
    assert set(errors_of(next(results))) == set(range(4))
    with pytest.raises(TooManyErrors, match=r"maxRows \(3\).*ValueError: no"):
        next(results)
    assert len(calls) < 30


def test_failed_rows_of_one_result_are_described_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    describe = Mock(side_effect=str)
    monkeypatch.setattr(step_runner, "describe", describe)
    decode = {"column": "text", "format": "json", "fields": {"a": "int64"}}
    step = Step.model_validate({"name": "decode", "decode": decode})
    run = SegmentRunner([Stage("stage", (step,))], replace(TOLERANT, max_rows=3))
    results = run(batch('{"a": 1}', *["{"] * 500))
    first = next(results)
    assert outcomes(first) == {0: "good"} | dict.fromkeys(range(1, 5), "failed")
    with pytest.raises(TooManyErrors):
        next(results)
    assert describe.call_count < 30


class Breaks:
    """Doubles numbers below 12. Raises an error for other batches."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, rows: pa.Table) -> pa.Table:
        if any(number >= 12 for number in rows["n"].to_pylist()):
            raise self._error
        return rows


@pytest.mark.parametrize("size", [4, 20])
@pytest.mark.parametrize("error", [ConnectionError("lost"), JobFailure("lost")], ids=repr)
def test_results_before_an_error_are_yielded(size: int, error: Exception) -> None:
    def halved(rows: pa.Table) -> pa.Table:
        if rows.num_rows > 4:
            raise ValueError("about a row")
        return Breaks(error)(rows)

    step = Step.model_validate({**PICKY, "batchSize": size})
    results = StepRunner(step, halved, WITHOUT_WAITS)(good(0, 0, range(20)))
    done = next(results).ids.tolist()
    assert done == list(range(len(done)))
    assert len(done) >= 10
    with pytest.raises(JobFailure, match="lost"):
        next(results)


def test_results_before_an_error_have_all_rows_of_their_input_rows() -> None:
    step = Step.model_validate({**PICKY, "batchSize": 4})
    ids = np.array([0] * 3 + [1] * 3 + [2] * 5 + [3] * 9)
    rows = RowBatch(pa.table({"n": range(20)}), ids, np.arange(4))
    results = StepRunner(step, Breaks(ConnectionError("lost")), WITHOUT_WAITS)(rows)
    done = next(results)
    assert (done.ids.tolist(), done.input_ids.tolist()) == (ids[:11].tolist(), [0, 1, 2])
    with pytest.raises(JobFailure, match="lost"):
        next(results)
    run = StepRunner(step, Breaks(ConnectionError("lost")), WITHOUT_WAITS)
    with pytest.raises(JobFailure, match="lost"):
        next(run(replace(rows, ids=np.zeros(20, np.int64), input_ids=np.zeros(1, np.int64))))


def test_stop_is_noticed_between_the_parts_of_a_batch() -> None:
    stopping, parts = Event(), list[int]()

    def slow(rows: pa.Table) -> pa.Table:
        parts.append(rows.num_rows)
        stopping.set()
        time.sleep(0.03)  # all rows would take three seconds
        return rows

    step = Step.model_validate({**PICKY, "batchSize": 2})
    run = StepRunner(step, slow, TOLERANT)
    (result,) = run(batch(*"ab" * 100), stopping)
    assert (parts, outcomes(result)) == ([2], {0: "good", 1: "good"})


def test_batch_does_not_account_for_the_input_rows_of_unanswered_rows() -> None:
    def answer(rows: pa.Table) -> TransformResult:
        known = np.flatnonzero(np.array(rows["n"]) % 4)
        for row in range(rows.num_rows):
            warn(WarningName.ANSWER_REPAIRED, row=row)
        unanswered = np.setdiff1d(np.arange(rows.num_rows), known)
        return TransformResult(rows.take(known), known, {row: Unanswered() for row in unanswered})

    step = Step.model_validate({**PICKY, "batchSize": 2})
    run = StepRunner(step, answer, replace(TOLERANT, tolerant=False))
    result = merged(run(good(0, 0, range(1, 9))))
    assert outcomes(result) == dict.fromkeys([0, 1, 2, 4, 5, 6], "good")
    assert result.warnings["id"].to_pylist() == [0, 1, 2, 4, 5, 6]
    ids = np.array([0, 0, 1, 1, 1])
    divided = RowBatch(pa.table({"n": [1, 2, 3, 4, 5]}), ids, np.arange(2))
    assert outcomes(merged(run(divided))) == {0: "good"}


@pytest.mark.parametrize("cause", [ConnectionError("down"), JobFailure("down")], ids=type)
def test_rows_that_were_answered_before_the_job_ended_come_before_its_error(
    cause: Exception,
) -> None:
    asked = list[int]()

    def answer(rows: pa.Table) -> TransformResult:
        numbers = rows["n"].to_pylist()
        asked.extend(numbers)
        good = np.array([row for row, number in enumerate(numbers) if number < 7])
        failed: dict[int, Exception] = {row: Unanswered(cause) for row in range(len(numbers))}
        failed |= {row: ValueError("odd") for row in good[1::2]}
        good = good[::2]
        return TransformResult(rows.take(good), good, {r: failed[r] for r in {*failed} - {*good}})

    step = Step.model_validate({**PICKY, "batchSize": 4})
    results = StepRunner(step, answer, WITHOUT_WAITS)(good(0, 0, range(12)))
    expected = dict.fromkeys([0, 2, 4, 6], "good") | dict.fromkeys([1, 3, 5], "failed")
    assert outcomes(next(results)) == expected
    with pytest.raises(JobFailure, match="down") as caught:
        next(results)
    assert (caught.value is cause) == isinstance(cause, JobFailure)
    assert asked == [*range(8)], "nothing is asked afterwards"


def test_failure_without_answers_has_no_results() -> None:
    def answer(rows: pa.Table) -> TransformResult:
        failed: dict[int, Exception] = {0: Unanswered(JobFailure("down"))}
        return TransformResult(rows.slice(0, 0), np.empty(0, np.int64), failed)

    step = Step.model_validate(PICKY)
    with pytest.raises(JobFailure, match="down"):
        next(StepRunner(step, answer, TOLERANT)(good(0, 0, [1])))


def test_row_that_fails_the_job_keeps_the_other_rows_of_its_batch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    snapshot = Location(str(tmp_path / "input.parquet"))
    snapshot.write(snapshot_input([str(tmp_path / "a.txt")], []).serialized())

    def answer(rows: pa.Table) -> TransformResult:
        return TransformResult(rows.take([0, 2]), np.array([0, 2]), {1: ValueError("odd")})

    errors = replace(TOLERANT, tolerant=False, input=snapshot)
    results = StepRunner(Step.model_validate(PICKY), answer, errors)(good(0, 0, range(3)))
    assert outcomes(next(results)) == {0: "good", 2: "good"}
    with pytest.raises(JobFailure, match=r"failed on row 1 of .*a\.txt: ValueError: odd"):
        next(results)


def test_provenance_passes_through() -> None:
    before = merged([failed(0, 7), filtered(0, 8), end(0, 9), RowBatch(notes=(("own", "{}"),))])
    result = runner(PICKY)(merged([batch("a", "bad"), before]))
    assert outcomes(result) == {0: "good", 1: "failed", 7: "failed", 8: "filtered"}
    assert errors_of(result) == {7: "ValueError: no", 1: f"ValueError: cannot take bad {LINE}"}
    assert (result.ends, result.notes[:1]) == (before.ends, before.notes)
    assert runner(PICKY, {"name": "all", "filter": "text == 'a'"})(before) is before


def test_time_of_a_step_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is recorded immediately, later batches once they take a tenth of the time."""
    clock = Mock()
    monkeypatch.setitem(step_time._CLOCKS, "timed", SharedClock(clock))
    result = StepTime("timed")
    used = []
    for seconds in (20.0, 1.5, 0.4, 0.3, 0.5):
        clock.side_effect = [0.0, seconds]
        with result.measure(lambda: 10):
            pass
        notes = result.take_notes()
        assert all(step == "timed" for step, _ in notes)
        used.append([json.loads(note) for _, note in notes])
    assert used == [[{"rows": 10, "seconds": 20.0}], *([], [], [{"rows": 30, "seconds": 2.2}], [])]
    ((step, rest),) = result.take_rest()
    assert step == "timed"
    assert json.loads(rest) == {"rows": 10, "seconds": 0.5}
    assert result.take_rest() == []


def test_time_is_divided_among_batches_that_are_computed_at_the_same_time() -> None:
    now = iter([0.0, 1.0, 4.0, 6.0, 10.0, 11.0])
    clock = SharedClock(lambda: next(now))
    first = clock.begin()
    second = clock.begin()  # after 1 s
    second = clock.end() - second  # after 4 s
    first = clock.end() - first  # after 6 s
    third = clock.begin()  # after 10 s
    third = clock.end() - third
    assert (first, second, third) == (1 + 3 / 2 + 2, 3 / 2, 1)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same thread", "other thread"])
def test_loading_is_noted_once(*, elsewhere: bool) -> None:
    thread = StepTime("embed")
    thread.add_load(2.5)
    if elsewhere:  # the thread that has loaded the model computes nothing
        thread = thread.for_other_thread()
    notes = []
    for _ in range(2):
        with thread.measure(lambda: 10):
            pass
        notes += thread.take_rest()
    assert [json.loads(note).get("load_seconds") for _, note in notes] == [2.5, None]
    assert collect_notes(notes).steps["embed"].load_seconds == 2.5


def test_waiting_for_rows_is_noted_apart_from_the_time_of_a_step() -> None:
    thread = StepTime("embed")
    waits = iter([{"wait_seconds": 1.75, "compute_seconds": 0.5}, {}])
    thread.note_also(lambda: next(waits))
    thread = thread.for_other_thread()
    with thread.measure(lambda: 10):
        pass
    ((_, first),) = thread.take_rest()
    with thread.measure(lambda: 10):
        pass
    ((_, second),) = thread.take_rest()
    assert json.loads(first)["wait_seconds"] == 1.75
    assert json.loads(first)["seconds"] < 1
    assert "wait_seconds" not in json.loads(second)
    steps = collect_notes([("embed", first), ("embed", second), ("own", second)]).steps
    assert (steps["embed"].wait_seconds, steps["own"].wait_seconds) == (1.75, None)
    assert (steps["embed"].compute_seconds, steps["embed"].blocked_seconds) == (0.5, None)


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
        result = runner(step | ({"batchSize": size} if size else {}))(batch(*"abcde"))
        assert seen == calls, size
        assert texts_of(result) == list("abcde")


WORDS = st.sampled_from(["a", "bb", "bad", "really bad", "c"])


@settings(max_examples=examples(60), deadline=None)
@given(
    texts=st.lists(WORDS, min_size=1, max_size=40),
    size=st.none() | st.integers(1, 10),
    cuts=st.integers(1, 10),
)
def test_each_row_has_one_outcome_for_any_batches(
    texts: list[str], size: int | None, cuts: int
) -> None:
    run = runner(
        PICKY | ({"batchSize": size} if size else {}), {"name": "short", "filter": "len(upper) < 2"}
    )
    starts = range(0, len(texts), cuts)
    result = merged(run(batch(*texts[at : at + cuts], first=at)) for at in starts)
    expected = {"a": "good", "c": "good", "bb": "filtered"}
    assert outcomes(result) == {n: expected.get(text, "failed") for n, text in enumerate(texts)}
    assert [(n, row["upper"]) for n, row in rows_of(result)] == [
        (n, text.upper()) for n, text in enumerate(texts) if expected.get(text) == "good"
    ]


NO_STAGES = Segment.of([], TOLERANT, "run")


@pytest.mark.parametrize(
    "sent",
    [lambda secrets: replace(TOLERANT, secrets=secrets), partial(BlockReader, None, NO_STAGES)],
)
def test_secrets_are_masked_in_each_process(sent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(sent(SecretVariables(("OWN_HEADER",))))
    monkeypatch.setattr(credentials, "_values", set())
    monkeypatch.setenv("OWN_HEADER", "value-in-a-worker")
    pickle.loads(pickled)
    assert describe(ValueError("got value-in-a-worker")) == "ValueError: got ***"
