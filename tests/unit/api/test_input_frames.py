"""DataFrames and Arrow tables as input: the same content is the same file, and no value changes."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference import Job
from batchinference.api.input_frames import Frame
from batchinference.spec import SpecError
from plugins.messages import Messages

WRITE = {"format": "parquet", "path": "out"}
PARIS = timezone(timedelta(hours=1))


def path_of(data: Any, **write: Any) -> str:
    (path,) = Job(data, {**WRITE, **write}).resource.spec.read.paths
    return str(path)


def stored(data: Any) -> pa.Table:
    return pq.read_table(io.BytesIO(Frame.of(data).content))


def column(values: Any, dtype: Any = None) -> pd.DataFrame:
    return pd.DataFrame({"c": pd.Series(values, dtype=dtype)})


def test_equal_frames_are_the_same_file_and_changed_ones_another() -> None:
    rows = {"id": [1, 2, 3], "text": ["a", "b", "c"]}
    first, table = path_of(pd.DataFrame(rows)), pa.table(rows)
    assert first == path_of(pd.DataFrame(rows))
    assert first != path_of(pd.DataFrame(rows | {"id": [1, 2, 4]}))
    parts = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert path_of(pa.table({"a": []})) != path_of(pa.table({"b": []}))
    empty = [pa.table({"a": pa.array([], kind)}) for kind in (pa.int64(), pa.string())]
    assert path_of(empty[0]) != path_of(empty[1])
    assert path_of(table) == path_of(parts) == path_of(SimpleNamespace(to_arrow=lambda: table))


def test_the_file_is_next_to_the_output_and_has_its_storage() -> None:
    write = {"path": "s3://bucket/out/", "storage": {"endpoint": "http://localhost:9000"}}
    read = Job(pa.table({"a": [1]}), {**WRITE, **write}).resource.spec.read
    assert read.paths[0].startswith("s3://bucket/out-input/")
    assert read.storage.endpoint == "http://localhost:9000"
    assert path_of(pa.table({"a": [1]}), path=Path("sub/out")).startswith("sub/out-input/")


def test_a_changed_frame_is_not_the_input_of_its_job(tmp_path: Path) -> None:
    values = np.arange(3)
    job = Job(pd.DataFrame({"a": values}, copy=False), WRITE, directory=tmp_path)
    values[0] = 9
    with job.prepared():
        (file,) = (tmp_path / "out-input").iterdir()
    assert pq.read_table(file).column("a").to_pylist() == [0, 1, 2]


def test_a_stored_frame_is_not_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        with Job(pa.table({"a": [1]}), WRITE, directory=tmp_path).prepared():
            (file,) = (tmp_path / "out-input").iterdir()
        kept = file.stat().st_mtime_ns
        file.touch()
        file.chmod(0o444)
    assert file.stat().st_mtime_ns >= kept


@pytest.mark.parametrize(
    ("frame", "kind", "values"),
    [
        (column([1, None], "Int64"), "int64", [1, None]),
        (column([1.5, None]), "double", [1.5, None]),
        (column([True, None], object), "bool", [True, None]),
        (column(["a", None, np.nan], object), "string", ["a", None, None]),
        (column([{"a": 1}, {"a": 2, "b": [1]}]), "struct<a: int64, b: list<element: int64>>",
         [{"a": 1, "b": None}, {"a": 2, "b": [1]}]),
        (column([np.array([1.5, 2]), None]), "list<element: double>", [[1.5, 2.0], None]),
        (column([datetime(2026, 1, 1, tzinfo=UTC)]), "timestamp[us, tz=UTC]",
         [datetime(2026, 1, 1, tzinfo=UTC)]),
        (column([]), "null", []),
    ],
)  # fmt: skip
def test_values_of_pandas_are_kept(frame: pd.DataFrame, kind: str, values: list[Any]) -> None:
    result = stored(frame).column("c")
    assert (str(result.type), result.to_pylist()) == (kind, values)


def test_categories_and_time_zones_are_kept() -> None:
    days = pd.date_range("2026-01-01", periods=2, tz="Europe/Paris")
    frame = pd.DataFrame({"kind": pd.Categorical(["a", "b"]), "day": days})
    table = stored(frame)
    assert table.column("kind").to_pylist() == ["a", "b"]
    assert table.schema.field("day").type.tz == "Europe/Paris"
    assert table.column("day").to_pylist() == list(days.to_pydatetime())


def test_views_are_stored_as_plain_types() -> None:
    views = pa.table({"text": pa.array(["a"], pa.string_view())})
    assert stored(views).schema.field("text").type == pa.large_string()


def test_row_numbers_are_no_index() -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    assert stored(frame).column_names == ["a"]
    assert stored(frame[frame.a > 0]).column_names == ["a"]


REFUSED = {
    "filtered": pd.DataFrame({"a": [1, 2]}).iloc[1:],
    "named index": pd.DataFrame({"a": [1]}, index=pd.Index(["x"], name="key")),
    "index of two levels": pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([(1, 2)])),
    "numbers as names": pd.DataFrame([[1, 2]]),
    "equal names": pd.DataFrame([[1, 2]], columns=["a", "a"]),
    "texts and numbers": column(["a", 1], object),
    "large number": column([2**70], object),
    "period": column(pd.period_range("2026", periods=1)),
    "complex": column([1 + 2j]),
    "objects": column([object()]),
    "time zones": column([datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=PARIS)],
                         object),
    "no frame": 5,
    "array": pa.array([1]),
    "series": pd.Series([1]),
    "reader": pa.table({"a": [1]}).to_reader(),
}  # fmt: skip


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_a_frame_that_would_change_is_refused(data: Any, messages: Messages) -> None:
    with messages.raises(SpecError):
        Job(data, WRITE)


def test_a_frame_needs_a_place_next_to_the_output(messages: Messages) -> None:
    with messages.raises(SpecError):
        Job(pa.table({"a": [1]}), {**WRITE, "path": "s3://bucket"})
