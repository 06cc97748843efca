"""The rows of a result as Arrow, pandas, Polars and Ray data: types, tensors, partitions, outputs
without rows, outputs of several jobs, and packages that are not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference import Job, run
from batchinference.api.result_frames import Rows
from batchinference.api.run import Result
from batchinference.pipeline.errors import BadOutput
from plugins.messages import Messages
from support.jobs.on_ray import write_lines
from support.jobs.without_ray import in_this_process, without_starting_ray

LINES = ["a", "bcd", "ef"]
READ = {"format": "text", "paths": ["in"]}
TYPED = {"name": "typed", "python": {"callable": "own_code:typed"}}
NONE = {"name": "none", "filter": "len(text) > 9"}
FILES = ("parquet", "json", "csv")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in", {"a.txt": LINES})


def result_of(format_: str, *steps: Any, name: str = "job", **write: Any) -> Result:
    fields = {"format": format_, "path": "out", **write}
    with in_this_process(), without_starting_ray():
        return run(Job(READ, fields, list(steps), name=name))


def ordered(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["text"])


def test_parquet_keeps_the_types_of_columns() -> None:
    table = result_of("parquet", TYPED).to_arrow()
    types = {field.name: str(field.type).replace("element", "item") for field in table.schema}
    assert types == {
        "text": "string",
        "small": "int8",
        "single": "float",
        "flag": "bool",
        "day": "timestamp[us]",
        "vector": "list<item: float>",
        "matrix": "list<item: list<item: int64>>",
    }


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_tensors_are_nested_lists(format_: str) -> None:
    columns = ["text", "vector", "matrix"]
    result = result_of(format_, TYPED, {"name": "slim", "selectColumns": columns})
    assert ordered(result.to_arrow()) == [
        {"text": text, "vector": [0.5] * 3, "matrix": [[len(text)] * 2] * 2} for text in LINES
    ]
    frame = result.to_pandas()
    assert sorted(frame.columns) == sorted(columns)
    assert all(np.stack(matrix).shape == (2, 2) for matrix in frame["matrix"])


@pytest.mark.parametrize("format_", FILES)
def test_partition_columns_are_columns(format_: str) -> None:
    kind = {"name": "kind", "python": {"callable": "own_code:kind_of_length"}}
    rows = ordered(result_of(format_, kind, partitionBy=["kind"]).to_arrow())
    assert [row["kind"] for row in rows] == ["one a", "more %", None]


@pytest.mark.parametrize("fields", [{}, {"partitionBy": ["code"]}], ids=["plain", "partition"])
@pytest.mark.parametrize("format_", FILES)
def test_texts_of_digits_stay_texts(format_: str, fields: dict[str, Any]) -> None:
    code = {"name": "code", "addColumns": {"code": "'00' + str(len(text))"}}
    rows = ordered(result_of(format_, code, **fields).to_arrow())
    assert [row["code"] for row in rows] == ["001", "003", "002"]


@pytest.mark.parametrize("format_", FILES)
def test_result_has_the_columns_of_all_jobs(format_: str) -> None:
    result_of(format_, mode="append")
    sizes = {"name": "sizes", "addColumns": {"size": "len(text)"}}
    result = result_of(format_, sizes, name="other", mode="append")
    actual = [row["size"] for row in ordered(result.to_arrow())]
    assert [size for size in actual if size is not None] == [1, 3, 2]
    assert actual.count(None) == 3


def test_values_of_several_jobs_without_a_common_type() -> None:
    mixed = {"name": "mixed", "addColumns": {"value": "text"}}
    sizes = {"name": "sizes", "addColumns": {"value": "len(text)"}}
    for format_ in ("csv", "json"):
        result_of(format_, mixed, name="texts", path=format_, mode="append")
    csv = result_of("csv", sizes, name="sizes", path="csv", mode="append")
    values = csv.to_arrow().column("value").to_pylist()
    assert sorted(values) == sorted([*LINES, "1", "2", "3"])
    json = result_of("json", sizes, name="sizes", path="json", mode="append")
    with pytest.raises(BadOutput, match="'value'"):  # the rest depends on the order of the files
        json.to_arrow()


@pytest.mark.parametrize("format_", FILES)
def test_result_reads_the_output_as_it_is_now(format_: str) -> None:
    first = result_of(format_)
    assert first.to_arrow().num_rows == 3
    short = {"name": "short", "filter": "len(text) < 3"}
    second = result_of(format_, short, mode="overwrite")
    for result in (first, second):
        assert sorted(result.to_arrow().to_pylist()[0].values()) in (["a"], ["ef"])
        assert result.to_arrow().num_rows == len(result.to_pandas()) == 2
        assert result.output == str(Path("out").absolute())


def test_pandas_rounds_no_integers() -> None:
    class Given(Rows):
        def to_arrow(self) -> pa.Table:
            return pa.table({"id": [2**60 + 1, None], "small": [1, None]})

    frame = Given().to_pandas()
    assert frame["id"].tolist() == [2**60 + 1, None]
    assert frame["small"].dtype == np.float64


def test_null_and_empty_texts_of_csv_differ() -> None:
    texts = {"name": "texts", "python": {"callable": "own_code:null_or_empty"}}
    rows = ordered(result_of("csv", texts).to_arrow())
    assert [row["other"] for row in rows] == [None, "", "NA"]


@pytest.mark.usefixtures("ray")
def test_result_is_a_ray_dataset() -> None:
    dataset = result_of("parquet", TYPED).to_ray()
    assert dataset.count() == 3
    assert sorted(row["text"] for row in dataset.take_all()) == LINES
    assert result_of("json", NONE, path="none").to_ray().count() == 0


def test_without_polars_the_error_has_the_install_command(
    monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    result = result_of("parquet")
    monkeypatch.setitem(sys.modules, "polars", None)
    with messages.raises(ModuleNotFoundError):
        result.to_polars()


def test_polars_gets_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class DataFrame:
        def __init__(self, table: pa.Table) -> None:
            self.rows = table.num_rows

    fake = SimpleNamespace(DataFrame=DataFrame, from_arrow=DataFrame)
    result = result_of("parquet")
    monkeypatch.setitem(sys.modules, "polars", fake)
    frame: Any = result.to_polars()
    assert frame.rows == 3


def test_errors_are_a_table_with_their_types() -> None:
    bad = {"name": "own", "python": {"callable": "own_code:refuse_long"}}
    with in_this_process(), without_starting_ray():
        write = {"format": "parquet", "path": "out"}
        result = run(Job(READ, write, [bad], errors={"maxRows": 2, "values": True}))
    errors = result.errors()
    types = {field.name: str(field.type) for field in errors.schema}
    assert types["row"] == "int64"
    assert {types[name] for name in ("path", "step", "error", "traceback")} <= {
        "string", "large_string"
    }  # fmt: skip
    (error,) = errors.to_pylist()
    assert (error["row"], error["step"]) == (1, "own")
    assert "ValueError: too long" in error["error"]
    assert errors.to_pandas()["step"].tolist() == ["own"]
    assert errors.schema == result_of("parquet", path="good").errors().schema
