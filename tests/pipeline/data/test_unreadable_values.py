"""Values that Arrow can hold and Python cannot fail their rows: no step and no writer raises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.arrow import unreadable_rows
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.input import batch_of
from batchinference.pipeline.output.error_records import values_as_json
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers.csv import CsvWriter
from batchinference.pipeline.output.writers.json import JsonWriter
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import RowBatch, consecutive_ids
from batchinference.pipeline.storage.location import Location
from batchinference.plan import Stage
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.outputs.batches import as_one_batch, errors_of, good, outcomes
from support.tiers import examples

TEXTS = pa.array([b"ok", b"\xff\xfe", None]).view(pa.string())
NUMBERS = pa.array([1, 2, 3])
OFFSETS = [0, 1, 2, 3]
MOMENTS = {
    "timestamp[us]": 2**62,
    "timestamp[s]": 2**40,
    "date64": 2**60,
    "duration[s]": 2**62,
    "time64[us]": 2**62,
    "time64[ns]": -(2**63),
    "date32": 2**30,
}


def moments(kind: pa.DataType, *values: int | None) -> pa.Array:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


LAST = 253_402_300_799
"""9999-12-31T23:59:59Z, in seconds."""
UNREADABLE = {
    **{name: moments(pa.type_for_alias(name), 0, last, None) for name, last in MOMENTS.items()},
    "after the last moment": moments(pa.timestamp("s", "UTC"), LAST, LAST + 1, None),
    "moved by its zone": moments(pa.timestamp("s", "Asia/Tokyo"), 0, LAST, None),
    "unknown zone": moments(pa.timestamp("s", "Nowhere/Zone"), None, 0, None),
    "text": TEXTS,
    "large text": TEXTS.cast(pa.large_binary()).view(pa.large_string()),
    "struct": pa.StructArray.from_arrays([TEXTS], ["x"]),
    "equal names": pa.array(
        [None, {"a": 1}, None], pa.struct([("a", pa.int64()), ("a", pa.int8())])
    ),
    "list": pa.ListArray.from_arrays(OFFSETS, TEXTS),
    "list of one size": pa.FixedSizeListArray.from_arrays(TEXTS, 1),
    "list view": pa.ListViewArray.from_arrays(OFFSETS[:3], [1, 1, 1], TEXTS),
    "map": pa.MapArray.from_arrays(OFFSETS, pa.array(["a", "b", "c"]), TEXTS),
    "keys": pa.MapArray.from_arrays(OFFSETS[:3], TEXTS.slice(0, 2), NUMBERS.slice(0, 2)),
    "dictionary": pa.DictionaryArray.from_arrays(
        NUMBERS.take(pa.array([0, 1])), pa.array([b"a", b"b", b"\xff"]).view(pa.string())
    ),
    "extension": pa.ExtensionArray.from_storage(pa.json_(), TEXTS),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_value_fails_its_row_when_it_is_read(name: str, messages: Messages) -> None:
    array = UNREADABLE[name]
    for start in (0, 1):
        column = array.slice(start)
        table = pa.table({"n": range(len(column)), "c": column})
        read = batch_of(table, consecutive_ids(0, start, len(column)))
        assert outcomes(read) == {
            n: "failed" if n == 1 else "good" for n in range(start, len(array))
        }
        messages.check(errors_of(read)[1])


def test_readable_values_are_read() -> None:
    read = batch_of(table := pa.table({"t": ["é", None], "n": [1, 2]}), np.arange(2))
    assert read.table is table
    assert not unreadable_rows(pa.table({"t": moments(pa.timestamp("ns"), 0, 2**63 - 1)}))


def stage(*steps: dict[str, Any], values: bool = True) -> Callable[[RowBatch], RowBatch]:
    made = tuple(Step.model_validate({"name": f"s{n}", **step}) for n, step in enumerate(steps))
    handling = ErrorHandling(tolerant=True, input=Location("/none"), values=values)
    return as_one_batch(SegmentRunner([Stage("stage", made)], handling))


def test_unreadable_result_fails_its_row(messages: Messages) -> None:
    raw = good(0, 0, pa.table({"raw": [b"a", b"\xff", b"c"]}))
    result = stage({"addColumns": {"text": "str(raw)"}})(raw)
    assert outcomes(result) == {0: "good", 1: "failed", 2: "good"}
    messages.check(errors_of(result)[1])


@pytest.mark.parametrize("name", UNREADABLE)
def test_error_record_of_an_unreadable_value_describes_it(name: str) -> None:
    assert '"<unreadable ' in values_as_json(pa.table({"c": UNREADABLE[name].slice(1, 1)}))


KINDS = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "+14:00")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.date64(), pa.time64("us"), pa.time64("ns"), pa.int64(), pa.float64(), pa.uint64()),
]
SMALL = [pa.date32(), pa.time32("s"), pa.time32("ms"), pa.float32()]
WRITERS = (JsonWriter("none"), CsvWriter("none", ","), ParquetWriter("snappy"))


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """Draw a column of three rows with any bits, nested in up to two lists or structs."""
    kind = draw(st.sampled_from([*KINDS, *SMALL, pa.string(), pa.large_string(), pa.binary()]))
    if kind in (pa.string(), pa.large_string(), pa.binary()):
        contents = draw(st.lists(st.none() | st.binary(max_size=4), min_size=3, max_size=3))
        binary = pa.large_binary() if kind == pa.large_string() else pa.binary()
        column = pa.array(contents, binary).view(kind)
    else:
        size = kind.bit_width
        number = st.integers(-(2 ** (size - 1)), 2 ** (size - 1) - 1) | st.integers(-9, 9)
        numbers = draw(st.lists(st.none() | number, min_size=3, max_size=3))
        column = pa.array(numbers, pa.int64() if size == 64 else pa.int32()).view(kind)
    for nested in draw(st.lists(st.booleans(), max_size=2)):
        column = (
            pa.ListArray.from_arrays(OFFSETS, column)
            if nested
            else pa.StructArray.from_arrays([column], ["x"])
        )
    return column


STEPS: list[dict[str, Any]] = [
    {"decode": {"column": "c", "format": "json", "fields": {"x": "string"}, "output": "d"}},
    {"decode": {"column": "c", "format": "text", "output": "d"}},
    {"addColumns": {"d": "str(c)"}},
    {"addColumns": {"d": "upper(c)"}},
    {"filter": "c == c"},
    {"explode": {"column": "c"}},
]


@settings(max_examples=examples(2000, 150), deadline=None)
@given(column=columns(), step=st.sampled_from(STEPS))
def test_no_value_ends_a_job(column: pa.Array, step: dict[str, Any]) -> None:
    table = pa.table({"n": range(3), "c": column})
    read = batch_of(table, np.arange(3, dtype=np.int64))
    result = stage(step)(read)
    assert set(outcomes(result)) == {0, 1, 2}
    for row in range(3):
        values_as_json(table.slice(row, 1))
    for batch in (read, result):
        for writer in WRITERS:
            list(writer.files(batch.table))
        with suppress(JobFailure):  # a column of this type cannot name directories
            list(FileSplit(partition_by=("c",)).split(batch.table))
