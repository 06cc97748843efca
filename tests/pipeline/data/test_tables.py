"""Every table format, on disk and in object stores: all rows or none are committed, once. Its own
library reads them back."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import lance
import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.commit.table_commit import Fence, TableFiles
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.input.file_input import open_input
from batchinference.pipeline.output.output_rows import first_rows
from batchinference.pipeline.storage.object_stores import iceberg_properties
from batchinference.spec.read import Read
from batchinference.spec.storage import Storage
from plugins.messages import Messages
from support.inputs.read_files import Outcome
from support.jobs.table_writes import TableTarget, in_order, run_job, table_of
from support.outputs.tables import table_rows
from support.servers.clouds import ACCOUNT_KEY, Cloud, served
from support.servers.s3 import S3Server

Row = dict[str, Any]
MOMENT = dt.datetime.fromisoformat("2026-01-02T03:04:05")
Write = dict[str, Any]


FORMATS = ("lance", "delta", "iceberg", "sql")


@pytest.fixture(params=FORMATS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TableTarget:
    return TableTarget(request.param, tmp_path)


def expected(*ids: int) -> list[Row]:
    return [{"id": number, "text": f"row {number}"} for number in ids]


def rows_with(**columns: Any) -> pa.Table:
    return pa.table(columns)


def numbered(*ids: int) -> pa.Table:
    return pa.Table.from_pylist(expected(*ids))


def everything() -> pa.Table:
    return pa.table(
        {
            "id": [0, 1],
            "flag": [True, None],
            "small": pa.array([255, None], pa.uint8()),
            "real": pa.array([1.5, None], pa.float32()),
            "half": pa.array(np.array([0.5, 2], np.float16)),
            "text": ['ü\n"', None],
            "raw": [b"\x00\xff", None],
            "day": [dt.date(2026, 1, 2), None],
            "moment": [MOMENT, None],
            "list": [["a", None], None],
            "struct": [{"a": 1, "b": [{"c": "x"}]}, None],
            "vector": to_column(np.array([[1, 2], [3, 4]], np.float32)),
            "image": to_column(np.full((2, 2, 1, 3), 200, np.uint8)),
            "word": pa.array(["x", "y"]).dictionary_encode(),
            "json": pa.array(["[1]", None], pa.json_()),
        }
    )


def test_every_type_is_read_back(target: TableTarget) -> None:
    assert target.run(everything())
    first, second = target.rows()
    image = [[[200, 200, 200]], [[200, 200, 200]]]
    assert first == {
        **{"id": 0, "flag": True, "small": 255, "real": 1.5, "half": 0.5, "text": 'ü\n"'},
        **{"raw": b"\x00\xff", "day": dt.date(2026, 1, 2), "list": ["a", None], "word": "x"},
        **{"moment": MOMENT, "struct": {"a": 1, "b": [{"c": "x"}]}, "json": "[1]"},
        **{"vector": [1.0, 2.0], "image": image},
    }
    known = {"id": 1, "half": 2.0, "vector": [3.0, 4.0], "image": image, "word": "y"}
    assert second == dict.fromkeys(first) | known


def test_parts_of_columns_with_nested_nulls_are_written(target: TableTarget) -> None:
    """Slices of such columns are special in Arrow."""
    rows: list[Row] = [{"id": 0, "s": {"a": None, "h": 1.5}}, {"id": 1, "s": None}]
    of_file = pa.schema([("a", pa.null()), ("h", pa.float16())])
    schema = pa.schema([("id", pa.int32()), ("s", pa.struct(of_file))])
    table = pa.Table.from_pylist(rows, schema)
    assert target.run(table.slice(0, 1), table.slice(1, 1))
    assert target.rows() == rows


def test_complete_job_is_committed_once(target: TableTarget) -> None:
    write = target.open().spec.write
    assert first_rows(write, 2) == []
    tables = numbered(0, 1), numbered(2), numbered(3, 4)
    assert target.run(*tables)
    assert not target.run(*tables)
    assert target.rows() == expected(0, 1, 2, 3, 4)
    state = target.folder / "out" / "_batchinference"
    assert not (state / "staged").exists()
    assert json.loads((state / "job.json").read_text())["attempt"] == 2
    assert (target.folder / "out" / "_SUCCESS").exists()
    assert len(first_rows(write, 2)) == 2
    assert set(first_rows(write, 1)[0]) == {"id", "text"}


def test_retried_task_adds_no_duplicates(target: TableTarget) -> None:
    job = target.open()
    job.begin(numbered(0))
    for _ in range(2):
        job.put(numbered(0, 1), task=0, first=0)
    job.put(numbered(2), task=1)
    job.commit()
    assert target.rows() == expected(0, 1, 2)


UNFIT: dict[str, tuple[pa.Array, pa.Array]] = {
    "a number that is too large": (pa.array([1.5], pa.float32()), pa.array([1e300])),
    "a time in a date": (pa.array([MOMENT.date()]), pa.array([MOMENT])),
    "a field that the table lacks": (pa.array([{"a": 1}]), pa.array([{"a": 1, "b": 2}])),
    "a number as a time": (pa.array([MOMENT]), pa.array([1760000000])),
    "a time as a number": (pa.array([1760000000]), pa.array([MOMENT])),
    "a number with more digits": (pa.array([Decimal("1.25")]), pa.array([0.125])),
    "a number as a flag": (pa.array([True]), pa.array([7])),
    "the number 1 as a flag": (pa.array([True]), pa.array([1])),
    "a fraction as a flag": (pa.array([True]), pa.array([0.0])),
    "a flag as a number": (pa.array([7]), pa.array([True])),
    "a flag in lists of numbers": (pa.array([[0.5]]), pa.array([[True]])),
    "a time without a zone": (pa.array([MOMENT], pa.timestamp("us", "UTC")), pa.array([MOMENT])),
    "bytes as a text": (pa.array(["a"]), pa.array([b"b"])),
    "bytes in lists of texts": (pa.array([["a"]]), pa.array([[b"b"]])),
    "bytes in a field of texts": (pa.array([{"a": "b"}]), pa.array([{"a": b"b"}])),
    "a text as bytes": (pa.array([b"a"]), pa.array(["b"])),
    "a text as a number": (pa.array([0.5]), pa.array(["007"])),
    "a number as a text": (pa.array(["3"]), pa.array([3])),
    "midnight as a day": (
        pa.array([MOMENT.date()]),
        pa.array([MOMENT.replace(hour=0, minute=0, second=0)]),
    ),
}


@pytest.mark.parametrize("target", ["lance", "delta", "iceberg"], indirect=True)
@pytest.mark.parametrize(("old", "new"), UNFIT.values(), ids=UNFIT)
def test_value_that_the_table_would_change_is_refused(
    target: TableTarget, old: pa.Array, new: pa.Array
) -> None:
    assert target.run(rows_with(id=[0], n=old), name="before", mode="append")
    with pytest.raises(BadOutput, match="'n'"):
        target.run(rows_with(id=[1], n=new), mode="append")
    assert [row["id"] for row in target.rows()] == [0]


@pytest.mark.parametrize("target", ["lance", "delta", "iceberg"], indirect=True)
def test_values_that_fit_the_table_are_kept(target: TableTarget) -> None:
    old = rows_with(id=[0], real=pa.array([0.5], pa.float32()), number=[1.0], none=["x"])
    new = rows_with(id=pa.array([1], pa.int16()), real=[0.1], number=[2**50], none=pa.nulls(1))
    assert target.run(old, name="before", mode="append")
    assert target.run(new, mode="append")
    expected = {"id": 1, "real": float(np.float32(0.1)), "number": 2.0**50, "none": None}
    assert target.rows()[1] == expected


def ready_to_commit(target: TableTarget, mode: str, *, filled: bool) -> TableFiles:
    """Return the files of a job with rows 0 and 1. If `filled`, the table already has row 9."""
    if filled:
        target.run(numbered(9), mode="append", name="before")
    job = target.open(numbered(0, 1), mode=mode)
    return job.place_files(job.check())[1]


def pass_check() -> None:
    """Pass the check before the commit."""


COMMITS = [(False, mode) for mode in ("error", "append", "overwrite")]
COMMITS += [(True, mode) for mode in ("append", "overwrite")]


@pytest.mark.parametrize(("filled", "mode"), COMMITS)
def test_table_takes_one_commit_of_a_series(target: TableTarget, filled: bool, mode: str) -> None:
    files = ready_to_commit(target, mode, filled=filled)
    table = target.table(mode=mode)
    rows = expected(0, 1, *([9] if filled and mode == "append" else []))

    table.register(files, Fence("first", "series", pass_check))
    assert target.rows() == rows
    table.register(files, Fence("first", "series", pass_check))
    with pytest.raises(BadOutput):
        table.register(files, Fence("second", "series", pass_check))
    assert (target.rows(), table.commit_count("second")) == (rows, 0)
    assert (table.commit_count("first"), table.commit_count("series")) == (1, 1)


def test_job_with_removed_state_is_a_new_run(target: TableTarget) -> None:
    assert target.run(numbered(0), mode="append")
    shutil.rmtree(target.folder / "out" / "_batchinference")
    target.open(numbered(0), mode="append")
    assert target.run(numbered(0), mode="append")
    assert target.rows() == expected(0, 0)


def test_table_filled_during_the_job_is_rejected(target: TableTarget) -> None:
    job = target.open(numbered(0))
    target.run(numbered(1), mode="append", name="other")
    with pytest.raises(BadOutput, match="has rows already"):
        job.commit()
    assert target.rows() == expected(1)


def test_mode_decides_about_a_table_with_rows(target: TableTarget) -> None:
    assert target.run(numbered(0), mode="append", name="first")
    assert target.run(numbered(1), mode="append", name="second")
    assert not target.run(numbered(1), mode="append", name="second")
    with pytest.raises(BadOutput, match="has rows already"):
        target.run(numbered(2), name="third")
    assert target.rows() == expected(0, 1)


def test_overwrite_replaces_the_rows_at_the_commit(target: TableTarget) -> None:
    target.run(numbered(0, 1), name="first")
    job = target.open(numbered(2), name="second", mode="overwrite")
    assert target.rows() == expected(0, 1)
    job.complete()
    assert target.rows() == expected(2)
    assert target.run(numbered(2), name="second", mode="overwrite")
    assert target.rows() == expected(2)


@pytest.mark.parametrize(("mode", "left"), [("append", [0]), ("overwrite", [])])
def test_job_without_rows_follows_its_mode(target: TableTarget, mode: str, left: list[int]) -> None:
    assert target.run(name="empty")
    assert target.rows() == []
    target.run(numbered(0), mode="append", name="first")
    assert target.run(mode=mode, name="second")
    assert target.rows() == expected(*left)


def test_selected_columns_keep_their_order(target: TableTarget) -> None:
    assert target.run(everything(), columns=["text", "id"])
    assert [list(row) for row in target.rows()] == [["text", "id"]] * 2


def test_null_missing_and_reordered_columns_fit(target: TableTarget) -> None:
    null, missing = pa.table({"id": [1], "text": pa.nulls(1)}), pa.table({"id": [3]})
    assert target.run(numbered(0), null, numbered(2).select(["text", "id"]), missing)
    texts = {row["id"]: row["text"] for row in target.rows()}
    assert texts == {0: "row 0", 1: None, 2: "row 2", 3: None}


def test_column_without_nulls_in_one_file_may_be_null_in_the_table(target: TableTarget) -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = target.table()
    ((_, content),) = table.files(pa.table([[1]], schema=required))
    assert table.schema_and_rows(bytes(content))[0].field("id").nullable


def test_whole_numbers_and_fractions_become_one_type(target: TableTarget) -> None:
    rows, fractions = rows_with(n=[1, None]), rows_with(n=[2.5])
    assert target.run(rows, fractions, rows_with(n=pa.nulls(1)))
    values = [row["n"] for row in table_rows(target.kind, target.folder)]
    assert sorted(values, key=str) == [1.0, 2.5, None, None]


def test_lists_of_which_some_are_empty_have_one_type(target: TableTarget) -> None:
    unknown, known = rows_with(n=[[], None]), rows_with(n=[[1]])
    lists = [json.dumps(row["n"]) for row in [{"n": []}, {"n": None}, {"n": [1]}]]
    for name, tables in {"typed": (unknown, known), "untyped": (unknown,)}.items():
        assert target.run(*tables, name=name, mode="overwrite")
        result = [json.dumps(row["n"]) for row in table_rows(target.kind, target.folder)]
        assert sorted(result) == sorted(lists[: 2 + (name == "typed")])


def test_value_without_a_place_in_the_type_of_all_rows_is_refused(
    target: TableTarget, messages: Messages
) -> None:
    with messages.raises(BadOutput):
        target.run(rows_with(n=[2**53 + 1]), rows_with(n=[0.5]))
    assert target.rows() == []


def test_changed_file_is_not_put_into_the_table(target: TableTarget) -> None:
    job = target.open(numbered(0, 1))
    entries = job.check()
    file = Path((job.job_pass.layout.data / entries[0].data[0].name).path)
    file.write_bytes(file.read_bytes().replace(b"row 1", b"row 7"))
    with pytest.raises(BadOutput, match="has changed since it was written"):
        job.commit(entries)
    assert target.rows() == []


CONFLICT = "column 'text' is string and list<item: int64>"


def conflicting() -> pa.Table:
    return pa.table({"id": [1], "text": [[1]]})


def test_type_conflict_ends_its_task(target: TableTarget) -> None:
    job = target.open(numbered(0))
    with pytest.raises(BadOutput, match=CONFLICT):
        job.put(conflicting())


def test_type_conflict_of_two_tasks_is_found_before_the_commit(target: TableTarget) -> None:
    job = target.open(numbered(0))
    vars(job.table).pop("_seen")
    job.put(conflicting())
    with pytest.raises(BadOutput, match=CONFLICT):
        job.commit()
    assert target.rows() == []


ROWS = [{"id": 0, "text": "a"}, {"id": 1, "text": None}, {"id": 2, "text": "b"}]


@pytest.fixture(scope="module")
def clouds() -> Iterator[dict[str, Cloud]]:
    with served("google") as google, served("azure") as azure:
        yield {"gs": google, "az": azure}


def iceberg(bucket: str, directory: Path) -> Write:
    properties = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
    properties["warehouse"] = f"{bucket}/w"
    return {"table": "ns.rows", "catalog": {"properties": properties}}


def write_and_append(write: Write, directory: Path) -> None:
    """Write two rows, append a third one, and run the append again, which must do nothing."""
    assert run_job(directory / "in", write, [pa.Table.from_pylist(ROWS[:2])])
    more = {**write, "mode": "append"}
    assert run_job(directory / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert not run_job(directory / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert in_order(table_of(write).first_rows(9)) == ROWS


@pytest.mark.parametrize("format_", ["lance", "delta", "iceberg"])
def test_rows_on_s3_are_read_back_and_appended_once(
    format_: str, tmp_path: Path, s3: S3Server, bucket: str
) -> None:
    write: Write = {"format": format_, "path": f"s3://{bucket}/out"}
    write |= iceberg(f"s3://{bucket}", tmp_path) if format_ == "iceberg" else {}
    write_and_append(write, tmp_path)
    assert in_order(read_by_library(write, s3)) == ROWS


def read_by_library(write: Write, s3: S3Server) -> list[dict[str, Any]]:
    """Read with the format's own library and its own options."""
    options = {**s3.environment, "AWS_ENDPOINT": s3.endpoint, "allow_http": "true"}
    match write["format"]:
        case "lance":
            dataset = lance.dataset(write["path"], storage_options=options)
            return list(dataset.to_table().to_pylist())
        case "delta":
            options["AWS_ALLOW_HTTP"] = "true"
            table = deltalake.DeltaTable(write["path"], storage_options=options)
            return list(table.to_pyarrow_table().to_pylist())
    # without a region, pyiceberg asks Amazon for the region of the bucket
    s3_properties = {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1"}
    properties = {**write["catalog"]["properties"], **s3_properties}
    catalog = load_catalog("default", **properties)
    return list(catalog.load_table("ns.rows").scan().to_arrow().to_pylist())


@pytest.mark.parametrize("format_", ["lance", "delta"])
@pytest.mark.parametrize(
    ("scheme", "anonymous"), [("gs", True), ("az", True), ("az", False)], ids=str
)
def test_rows_on_clouds_are_read_back_and_appended_once(
    format_: str,
    scheme: str,
    anonymous: bool,
    clouds: dict[str, Cloud],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not anonymous:
        monkeypatch.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)
    storage = {"endpoint": clouds[scheme].endpoint, "anonymous": anonymous}
    path = f"{scheme}://{format_}-{anonymous}".lower() + "/out"
    write_and_append({"format": format_, "path": path, "storage": storage}, tmp_path)
    source = TypeAdapter(Read).validate_python(
        {"format": format_, "path": path, "storage": storage}
    )
    batches = [batch for task in open_input(source).read_tasks(1) for batch in task()]
    assert in_order(Outcome(batches).good) == ROWS


def test_iceberg_reaches_its_warehouse_on_google(
    clouds: dict[str, Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TOKEN": "t", "TOKEN_EXPIRES_AT": "32503680000000"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__GCS__OAUTH2__{name}", value)
    # pyiceberg reads the environment at import, and another test may have imported it
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    storage = {"endpoint": clouds["gs"].endpoint, "anonymous": True}
    write = {"format": "iceberg", "path": "gs://iceberg/out", "storage": storage}
    write |= iceberg("gs://iceberg", tmp_path)
    assert run_job(tmp_path / "in", write, [pa.Table.from_pylist(ROWS)])
    assert in_order(table_of(write).first_rows(9)) == ROWS
    assert any(name.startswith("iceberg/w/") for name in clouds["gs"].objects)


def test_iceberg_properties_name_the_endpoint() -> None:
    s3 = {"s3.endpoint": "https://store", "s3.region": "here"}
    for location, expected in (
        ("s3://lake/w", s3),
        ("./out", s3),
        ("gs://lake/w", {"gcs.service.host": "https://store"}),
        ("abfss://lake@account.dfs.core.windows.net/w", {}),
        ("az://lake/out", {}),
    ):
        properties = iceberg_properties(location, Storage(endpoint="https://store", region="here"))
        assert properties == expected, location
