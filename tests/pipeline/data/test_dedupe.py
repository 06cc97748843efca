"""Rows of a model step with equal inputs are computed once, and each is still accounted for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.execution.report_notes import with_sums
from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.report.builder import collect_notes
from batchinference.pipeline.row_batch import RowBatch
from batchinference.pipeline.row_hashes import HASH_BYTES, row_hashes
from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.http_retry_policy import RequestFailed
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.steps import model as model_step
from batchinference.pipeline.steps.code_hashes import model_digest
from batchinference.pipeline.steps.dedupe import Dedupe
from batchinference.pipeline.steps.result_cache import KnownResults, RecentResults, flush_caches
from batchinference.pipeline.type_widening import map_nulls, map_types
from batchinference.plan import Stage
from batchinference.spec.models import VllmModel
from batchinference.spec.progress import TokenKind
from batchinference.spec.steps import Step
from batchinference.spec.warnings import WarningName
from support.documents.vllm_models import vllm
from support.outputs.batches import as_one_batch, good, outcomes, rows_of
from support.outputs.row_warnings import warnings_of
from support.outputs.stages import TOLERANT
from support.tiers import examples

MODEL = {
    **{"runtime": "http", "api": "chat", "url": "http://host/v1", "name": "m"},
    **{"inputs": {"text": "text"}, "output": "answer"},
}


class Answers:
    """A runtime that answers with the number of the computed row, and may fail."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.details = False

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        texts = list(inputs["text"])
        if "raise" in texts:
            raise ValueError("raise")
        return [self._answer(row, text) for row, text in enumerate(texts)]

    def _answer(self, row: int, text: str) -> Any:
        self.asked.append(text)
        if text.startswith("long"):
            warn(WarningName.TEXT_CUT, row=row, amount=2)
        if text.startswith("paid"):
            count_tokens(row, read=3)
        if text.startswith("repaired"):
            warn(WarningName.ANSWER_REPAIRED, row=row, amount=2)
        if text.endswith("bad"):
            return RequestFailed(text)
        if text == "busy":
            return RequestFailed(text) if self.asked.count(text) < 3 else "late"
        answer = f"{text} {len(self.asked)}"
        return (answer, None) if self.details else answer


class Job:
    """A model step with `dedupe` in one process."""

    def __init__(self, errors: ErrorHandling = TOLERANT, **step: Any) -> None:
        self.answers = Answers()
        fields = {"name": "ask", "model": MODEL, "dedupe": True, **step}
        with patch.object(model_step, "load_runtime", lambda *_: self.answers):
            self.stage = SegmentRunner([Stage("ask", (Step.model_validate(fields),))], errors)
        self.run = as_one_batch(self.stage)

    def of(self, *texts: str | None, first: int = 0) -> RowBatch:
        columns = {"text": pa.array(texts, pa.string()), "own": range(len(texts))}
        return self.run(good(0, first, pa.table(columns)))


def answers_of(batch: RowBatch) -> list[Any]:
    return [row["answer"] for _, row in rows_of(batch)]


def tokens_of(batch: RowBatch) -> list[tuple[int, str, int]]:
    columns = (batch.warnings.column(name).to_pylist() for name in ("id", "name", "amount"))
    return [row for row in zip(*columns, strict=True) if row[1] in set(TokenKind)]


def counts(*batches: RowBatch) -> tuple[int | None, int | None]:
    """Return the reported numbers of reused rows, and of rows from the cache."""
    times = collect_notes(note for batch in batches for note in batch.notes).steps["ask"]
    return times.reused, times.cached


def test_equal_rows_of_a_batch_are_computed_once() -> None:
    job = Job()
    result = job.of("a", "b", "a", "a", "c", "b")
    assert job.answers.asked == ["a", "b", "c"]
    assert answers_of(result) == ["a 1", "b 2", "a 1", "a 1", "c 3", "b 2"]
    assert [row["own"] for _, row in rows_of(result)] == [*range(6)]
    assert outcomes(result) == dict.fromkeys(range(6), "good")
    assert counts(result)[0] == 3


def test_rows_of_later_batches_reuse_results() -> None:
    job = Job(batchSize=2)
    first, second = job.of("a", "b", "c", "a"), job.of("c", "d", "a", first=4)
    assert job.answers.asked == ["a", "b", "c", "d"]
    assert answers_of(second) == ["c 3", "d 4", "a 1"]
    assert counts(first, second)[0] == 3


def test_results_of_an_earlier_job_are_reused(tmp_path: Path) -> None:
    location = {"path": str(tmp_path)}
    first = Job(cache=location, dedupe=False)
    before = first.of("a", "long", "bad", "a", None)
    flush_caches()
    later = Job(cache=location)
    result = later.of("b", "long", "a", "bad", None, "a")
    assert later.answers.asked == ["b", "bad"]
    assert answers_of(result) == ["b 1", "long 2", "a 1", None, "a 1"]
    assert warnings_of(result) == [(1, "TextCut", 2), (4, "NullInput", 0)]
    assert counts(before) == (1, None)
    assert counts(result) == (None, 4)


def test_tokens_of_reused_results_are_not_counted(tmp_path: Path) -> None:
    location = {"path": str(tmp_path)}
    first = Job(cache=location)
    assert tokens_of(first.of("a", "paid", "paid")) == [(1, "inputTokens", 3)]
    flush_caches()
    assert tokens_of(Job(cache=location).of("paid")) == []


def test_tokens_of_the_step_are_reported() -> None:
    job = Job()
    result = job.of("paid", "paid", "paid too"), job.of("paid", "paid bad", first=3)
    times = collect_notes(with_sums(note for batch in result for note in batch.notes)).steps["ask"]
    assert (times.input_tokens, times.output_tokens, times.reused) == (9, None, 2)


def test_tokens_of_failed_rows_are_counted() -> None:
    for reuses in (True, False):
        job = Job(dedupe=reuses)
        result = job.of("a", "paid bad", "paid bad")
        assert outcomes(result) == {0: "good", 1: "failed", 2: "failed"}
        times = job.answers.asked.count("paid bad")
        assert tokens_of(result) == [(row, "inputTokens", 3) for row in (1, 2)[:times]]


def test_results_of_other_settings_are_not_reused(tmp_path: Path) -> None:
    location = {"path": str(tmp_path)}
    first = Job(cache=location)
    first.of("a")
    flush_caches()
    changes: list[dict[str, Any]] = [
        {"prompt": "{text}!"},
        {"url": "http://other/v1"},
        {"name": "n"},
        {"sampling": {"seed": 1}},
        {"nullInput": "fail"},
        {"details": "details"},
    ]
    for change in changes:
        job = Job(cache=location, model={**MODEL, **change}, dedupe=False)
        job.answers.details = "details" in change
        job.of("a")
        assert job.answers.asked == ["a"], change
    same = {**MODEL, "output": "other", "inputs": {"text": "renamed"}, "timeout": "1m"}
    job = Job(cache=location, model=same)
    rows = rows_of(job.run(good(0, 0, pa.table({"renamed": ["a"]}))))
    assert rows == [(0, {"renamed": "a", "other": "a 1"})]


def test_whatever_changes_the_answers_of_vllm_is_another_key(tmp_path: Path) -> None:
    by_name = {name: tmp_path / name for name in ("model", "other", "adapters")}
    for name, location in by_name.items():
        (location / "a").mkdir(parents=True)
        (location / "a" / "weights").write_text(name)
    adapter = {"adapter": "name", "inputs": {"text": "text", "name": "name"}}
    adapter["loraPath"] = str(by_name["adapters"])
    changes: list[dict[str, Any]] = [
        {},
        {"source": str(by_name["other"])},
        {"sampling": {"temperature": 0}},
        {"sampling": {"temperature": 0.5}},
        {"chatTemplate": "{{ messages }}"},
        {"chatTemplateArgs": {"enable_thinking": False}},
        {"system": "Hm."},
        {"schema": {"jsonSchema": {"type": "integer"}}},
        {"engine": {"dtype": "float32"}},
        adapter,
        {"request": "text", "sampling": {}},
    ]

    def digest(change: dict[str, Any]) -> str:
        fields = {"source": str(by_name["model"]), "inputs": {"text": "text"}, "sampling": {}}
        return model_digest(VllmModel.model_validate(vllm(**{**fields, **change})), Device())

    digests = [digest(change) for change in changes]
    assert len(set(digests)) == len(changes)
    assert digest({"inputs": {"text": "renamed"}, "output": "other"}) == digests[0]
    (by_name["adapters"] / "a" / "weights").write_text("trained again")
    assert digest(adapter) not in digests


def test_cache_that_cannot_be_used_costs_no_rows(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = Job(cache={"path": str(tmp_path / "file")}).of("a", "a")
    assert answers_of(result) == ["a 1", "a 1"]
    (note,) = collect_notes(result.notes).notes
    assert "(1 time)" in note


def test_without_dedupe_each_row_is_computed() -> None:
    assert answers_of(Job(dedupe=False).of("a", "a")) == ["a 1", "a 2"]


def test_rows_equal_to_a_failed_row_are_computed() -> None:
    job = Job()
    result = job.of("bad", "a", "bad", "a")
    assert job.answers.asked == ["bad", "a", "bad"]
    assert outcomes(result) == {0: "failed", 1: "good", 2: "failed", 3: "good"}
    assert counts(result)[0] == 1


def test_result_after_a_transient_error_is_shared() -> None:
    job = Job()
    result = job.of("busy", "busy", "busy", "a")
    assert job.answers.asked == ["busy", "a", "busy", "busy"]
    assert outcomes(result) == {0: "failed", 1: "failed", 2: "good", 3: "good"}
    assert answers_of(job.of("busy")) == ["late"]
    assert job.answers.asked.count("busy") == 3


def test_raised_error_is_isolated_to_equal_rows() -> None:
    result = Job().of("a", "raise", "b", "raise", "a", "raise")
    assert outcomes(result) == dict(enumerate(["good", "failed"] * 3))
    assert answers_of(result)[0] == answers_of(result)[2]


def test_each_row_has_its_warnings() -> None:
    job = Job()
    assert warnings_of(job.of("a", "long", "long")) == [(1, "TextCut", 2), (2, "TextCut", 2)]
    assert warnings_of(job.of("long", first=3)) == [(3, "TextCut", 2)]


def test_requests_that_repair_an_answer_count_once(tmp_path: Path) -> None:
    cache = {"path": str(tmp_path)}
    job = Job(cache=cache)
    result = job.of("repaired", "repaired")
    name = WarningName.ANSWER_REPAIRED.value
    assert warnings_of(result) == [(0, name, 2), (1, name, 0)]
    flush_caches()
    assert warnings_of(Job(cache=cache).of("repaired")) == [(0, name, 0)]


PICTURE = '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "%s"}}]}]'


@pytest.mark.parametrize(
    ("text", "fields", "is_kept"),
    [
        ("https://host/a.png", {"images": ["text"], "prompt": "{text}"}, False),
        ("data:image/png;base64,AA==", {"images": ["text"], "prompt": "{text}"}, True),
        ("https://host/a.png", {}, True),
        (PICTURE % "https://host/a.png", {}, False),
        ('{"messages": ' + PICTURE % "http://host/a.png" + "}", {"request": "text"}, False),
        (PICTURE % "data:image/png;base64,AA==", {}, True),
    ],
)
def test_content_behind_an_address_is_not_kept_for_other_jobs(
    tmp_path: Path, text: str, fields: dict[str, Any], is_kept: bool
) -> None:
    for number in range(2):
        job = Job(cache={"path": str(tmp_path)}, model={**MODEL, **fields})
        job.of(text, "other", text)
        flush_caches()
        asked = [text, "other"] if not number else [] if is_kept else [text]
        assert job.answers.asked == asked


def test_rows_whose_warning_fails_stay_failed() -> None:
    job = Job(replace(TOLERANT, failing=["TextCut"]))
    assert outcomes(job.of("long", "a", "long")) == {0: "failed", 1: "good", 2: "failed"}
    assert outcomes(job.of("long")) == {0: "failed"}


def test_all_columns_that_the_step_reads_count() -> None:
    two = {**MODEL, "inputs": {"text": "text", "own": "own"}, "prompt": "{text}{own}"}
    job = Job(model=two)
    job.of("a", "a")
    assert job.answers.asked == ["a", "a"]


def group(*keys: str) -> KnownResults:
    table = pa.table({"answer": np.zeros((len(keys), 1000))[:, 0]})
    return KnownResults([key.encode() for key in keys], table, {})


def test_memory_is_bounded() -> None:
    one, other, large = group("a", "b"), group("b", "c"), group(*map(str, range(100)))
    recent = RecentResults(max_bytes=2 * one.nbytes)
    for results in (one, other):
        recent.add(results)
    known = {b"a": (one, 0), b"b": (other, 0), b"c": (other, 1)}
    assert recent.find([b"a", b"b", b"c", b"d"]) == known
    recent.add(large)
    assert recent.find([b"a", b"c", b"7"]) == {b"7": (large, 7)}
    recent.add(one)
    assert recent.find([b"a", b"7"]) == {b"a": (one, 0)}


def test_results_that_are_forgotten_are_computed_again() -> None:
    answers = Answers()
    with patch.object(model_step, "load_runtime", lambda *_: answers):
        step = Step.model_validate({"name": "ask", "model": MODEL, "dedupe": True})
        transform = load_step(step, Device())
    assert isinstance(transform, Dedupe)
    transform.recent = RecentResults(max_bytes=1)
    for texts in (["a", "a"], ["b"], ["a"]):
        transform(pa.table({"text": texts}))
    assert answers.asked == ["a", "b", "a"]


def test_order_of_the_fields_of_an_answer_counts() -> None:
    fields = [{"name": "reason", "type": "string"}, {"name": "label", "type": "string"}]
    orders = (fields, fields[::-1])
    steps = [
        Step.model_validate({"name": "ask", "model": {**MODEL, "schema": {"fields": order}}})
        for order in orders
    ]
    digests = {model_digest(step.model, Device()) for step in steps if step.model}
    assert len(digests) == 2


SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-2, 2)),
    (pa.float64(), st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")])),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.sampled_from(["", "a", "b", "ab", "é", "e\u0301", "\0"])),
    (pa.binary(), st.sampled_from([b"", b"a", b"\0", b"\1\0"])),
    (pa.binary(2), st.sampled_from([b"ab", b"\0\0"])),
    (pa.decimal128(4, 2), st.sampled_from([Decimal("0.00"), Decimal("1.50")])),
    (pa.date32(), st.sampled_from([date(2020, 1, 1), date(1960, 1, 1)])),
    (pa.duration("s"), st.sampled_from([timedelta(0), timedelta(1)])),
    (pa.null(), st.none()),
]


def nested(column: tuple[pa.DataType, Any]) -> st.SearchStrategy[Any]:
    kind, values = column
    values = st.none() | values
    return st.sampled_from([
        (pa.list_(kind), st.lists(values, max_size=2)),
        (pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)),
        (pa.struct([("x", kind), ("y", pa.string())]),
         st.fixed_dictionaries({"x": values, "y": st.sampled_from(["", "a"])})),
        (pa.map_(pa.string(), kind),
         st.lists(st.tuples(st.sampled_from("ab"), values), max_size=2)),
    ])  # fmt: skip


TYPES = st.recursive(st.sampled_from(SCALARS), lambda kinds: kinds.flatmap(nested), max_leaves=3)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    kind, values = draw(TYPES)
    return pa.array(draw(st.lists(st.none() | values, min_size=1, max_size=6)), kind)


def hashes(*values: pa.Array | pa.ChunkedArray) -> list[bytes]:
    return row_hashes(pa.table({str(at): column for at, column in enumerate(values)}))


@settings(max_examples=examples(1500, 60), deadline=None)
@given(columns())
def test_equal_values_and_no_others_have_the_same_hash(column: pa.Array) -> None:
    digests = hashes(column)
    assert all(len(each) == HASH_BYTES for each in digests)
    texts = list(map(repr, column.to_pylist()))  # with the sign of 0, and types
    for one, text in zip(digests, texts, strict=True):
        same = [other == one for other in digests]
        assert same == [other == text for other in texts]


@settings(max_examples=examples(1500, 60), deadline=None)
@given(columns(), st.data())
def test_hash_does_not_depend_on_how_arrow_stores_the_rows(
    column: pa.Array, data: st.DataObject
) -> None:
    digests = hashes(column)
    start = data.draw(st.integers(0, len(column) - 1))
    assert hashes(column.slice(start)) == digests[start:]
    assert hashes(pa.chunked_array([column.slice(0, start), column.slice(start)])) == digests
    padded = pa.concat_arrays([column, column.take(pa.array([None, 0], pa.int64())), column])
    assert hashes(padded.slice(len(column) + 2)) == digests
    if not pa.types.is_nested(column.type) and not pa.types.is_null(column.type):
        assert hashes(column.dictionary_encode()) == digests
    if map_nulls(column.type) == column.type:  # Arrow casts nested columns of null to invalid ones
        large = map_types(column.type, lambda k: pa.large_string() if k == pa.string() else k)
        assert hashes(column.cast(large)) == digests


def test_hash_does_not_depend_on_how_arrow_stores_lists() -> None:
    element = pa.field("element", pa.dictionary(pa.int32(), pa.string()), nullable=False)
    kinds = pa.list_(pa.string()), pa.list_(element), pa.list_(element, 2), pa.large_list(element)
    lists = [pa.array([["a", "b"]], kind) for kind in kinds]
    digests = {hashes(each, pa.StructArray.from_arrays([each], ["x"]))[0] for each in lists}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1]), pa.array([1], pa.int32())),
        (pa.array([1]), pa.array([1.0])),
        (pa.array([True]), pa.array([1], pa.uint8())),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([None], pa.string()), pa.array([""])),
        (pa.array([None], pa.string()), pa.array([None], pa.int64())),
        (pa.array([0], pa.timestamp("s")), pa.array([0], pa.timestamp("ms"))),
        (pa.array([0], pa.timestamp("s")), pa.array([0], pa.timestamp("s", "UTC"))),
        (pa.array([{"x": 1}]), pa.array([{"y": 1}])),
        (pa.array([[1, 2]]), pa.array([[1, 2]], pa.list_(pa.int32()))),
        (to_column(np.zeros((1, 2, 3))), to_column(np.zeros((1, 3, 2)))),
        (to_column(np.zeros((1, 2), np.uint8)), to_column(np.zeros((1, 2), np.int8))),
    ],
)
def test_values_of_other_types_have_another_hash(one: Any, other: Any) -> None:
    assert hashes(one) != hashes(other)


def test_values_do_not_move_between_columns() -> None:
    one = pa.array(["ab", "a", "", "abc"])
    other = pa.array(["c", "bc", "abc", ""])
    assert len(set(hashes(one, other))) == 4
    assert row_hashes(pa.table({"a": one})) != row_hashes(pa.table({"b": one}))
    assert len(set(hashes(pa.array([["a", "b"], ["ab"], ["a,b"], ["", "a", "b"]])))) == 4


def test_image_has_the_same_hash_among_images_of_other_shapes() -> None:
    image, other = np.arange(12).reshape(2, 2, 3), np.zeros((1, 2, 3), np.int64)
    (alone,) = hashes(to_column([image]))
    assert hashes(to_column([other, image]))[1] == alone
    assert hashes(to_column([image + 1]))[0] != alone


def test_hash_is_the_same_in_other_processes() -> None:
    code = (
        "import pyarrow as pa; from batchinference.pipeline.row_hashes import row_hashes;"
        "print(row_hashes(pa.table({'0': ['a']}))[0].hex())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout.strip() == hashes(pa.array(["a"]))[0].hex()


_TIME = pa.time64("ns")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (_TIME, [1, 2, 2, None]),
        (pa.list_(_TIME), [[1], [2], [2], []]),
        (pa.list_(_TIME, 1), [[1], [2], [2], [None]]),
        (pa.large_list(pa.struct([("a", _TIME)])), [[{"a": n}] for n in (1, 2, 2, 3)]),
        (pa.map_(pa.string(), pa.list_(_TIME)), [[("a", [n])] for n in (1, 2, 2, 3)]),
    ],
)
def test_nanoseconds_of_times_count(kind: pa.DataType, values: list[Any]) -> None:
    one, two, same, other = hashes(pa.array(values, kind))
    assert two == same
    assert len({one, two, other}) == 3
