"""Versions of Delta tables as an input: columns, filters, pruning, deleted rows and refusals."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.changed_files import ProcessedFiles
from batchinference.pipeline.input.input_snapshot import InputSnapshot
from plugins.messages import Messages
from support.calls import counted
from support.inputs.delta_vectors import (
    commit,
    delete_positions,
    enable_vectors,
    entries,
    live_adds,
)
from support.inputs.read_files import Input, Outcome, open_versioned


def opened(table: Path, earlier: ProcessedFiles | None = None, **options: Any) -> Input:
    return open_versioned({"format": "delta", "path": str(table), "options": options}, earlier)


def changes_after(earlier: Input, table: Path) -> Outcome:
    """Return the rows that a later run reads if an earlier run has read `earlier`."""
    return opened(table, ProcessedFiles([earlier.snapshot])).read()


def test_parts_that_several_runs_have_lost_are_read_in_order(tmp_path: Path) -> None:
    """Runs have read each version. The outputs of two runs with a run between them are gone."""
    runs: list[InputSnapshot] = []
    for number in range(10):
        append(tmp_path, "day", number)
        runs.append(opened(tmp_path, ProcessedFiles([*runs]) if runs else None).snapshot)
    remaining = [run for number, run in enumerate(runs) if number not in (3, 8)]
    first = opened(tmp_path, ProcessedFiles(remaining))
    second = opened(tmp_path, ProcessedFiles([*remaining, first.snapshot]))
    assert (first.read().ids, second.read().ids) == ([3], [8])


def read(table: Path, **options: Any) -> Outcome:
    return opened(table, **options).read()


def append(table: Path, day: str, *ids: int, **options: Any) -> None:
    rows = pa.table({"id": ids, "day": [day] * len(ids)})
    write_deltalake(table, rows, mode="append", **options)


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """A table with partitions of three rows."""
    for start, day in enumerate(("fri day", "sat/day", "sun=day")):
        append(tmp_path, day, *range(3 * start, 3 * start + 3), partition_by=["day"])
    return tmp_path


def test_version_is_read_with_its_columns(days: Path) -> None:
    assert read(days, version=1).ids == [*range(6)]
    content = read(days, columns=["day"])
    assert [*content.good[0]] == ["day"]
    assert len(content.good) == 9
    assert {row["day"] for row in read(days).good} == {"fri day", "sat/day", "sun=day"}


@pytest.mark.parametrize("parts", [["text"], None])
def test_files_on_which_a_filter_fails_have_failed_rows_and_others_are_left_out(
    tmp_path: Path, parts: list[str] | None
) -> None:
    ids = pa.array([2**53 + 1, 5, 6], pa.int64())
    write_deltalake(tmp_path, pa.table({"id": ids, "text": ["bad", "1", "2"]}), partition_by=parts)
    source = opened(tmp_path, filter="int(text) > 1")
    assert len(source.snapshot) == (2 if parts else 1)
    content = source.read()
    assert (content.ids, len(content.bad)) == ([6], 1)
    assert len(read(tmp_path, filter="id > 0.5").good) == 3


def test_row_groups_without_such_rows_are_not_decoded(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [*range(100)]}))
    (path,) = live_adds(tmp_path)
    pq.write_table(pa.table({"id": [*range(100)]}), tmp_path / path, row_group_size=10)
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    actions = entries(log)
    for action in actions:
        if "add" in action:
            action["add"] |= {"size": (tmp_path / path).stat().st_size}
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    enable_vectors(tmp_path)
    delete_positions(tmp_path, path, [1, 55, 99])
    with counted(pq.ParquetFile, "iter_batches") as batches:
        content = opened(tmp_path, filter="id > 52 and id < 58").read()
    assert {*batches.call_args.kwargs["row_groups"]} == {5}
    assert (content.ids, content.filtered) == ([53, 54, 56, 57], 93)
    assert content.ends == {0: 97}
    assert content.order == [(0, 52), (0, 53), (0, 54), (0, 55)]


def test_deleted_positions_are_no_rows_in_any_part_of_a_file(tmp_path: Path) -> None:
    append(tmp_path, "monday", *range(10))
    enable_vectors(tmp_path)
    (path,) = live_adds(tmp_path)
    delete_positions(tmp_path, path, [0, 4, 9])
    delete_positions(tmp_path, path, [0, 4, 5, 9], inline=True)
    assert read(tmp_path, version=2).ids == [1, 2, 3, 5, 6, 7, 8]
    source = opened(tmp_path)
    content = source.read()
    assert content.ids == [1, 2, 3, 6, 7, 8]
    assert (content.ends, content.filtered) == ({0: 6}, 0)
    assert source.given.count() == RowCount(6, estimated=False)
    gaps = {0: [(1, 3), (5, None)]}
    parts = [batch for task in source.given.read_tasks(3, gaps) for batch in task()]
    assert Outcome(parts).ids == [2, 3, 8]
    assert Outcome(parts).order == [(0, 1), (0, 2), (0, 5)]


def test_deleted_positions_belong_to_the_file_of_their_directory(tmp_path: Path) -> None:
    append(tmp_path, "monday", 1, 2, partition_by=["day"])
    enable_vectors(tmp_path)
    ((path, add),) = live_adds(tmp_path).items()
    for day in ("sun day", "sun%20day"):
        directory, name = tmp_path / f"day={day}", path.rpartition("/")[2]
        directory.mkdir()
        (directory / name).write_bytes((tmp_path / path).read_bytes())
        logged = quote(f"day={day}/{name}")
        values = {"partitionValues": {"day": day}}
        commit(tmp_path, {"add": {**add, **values, "path": logged}})
        if day == "sun day":
            delete_positions(tmp_path, logged, [0])
    pairs = sorted((row["day"], row["id"]) for row in read(tmp_path).good)
    rest = [("sun day", 2), ("sun%20day", 1), ("sun%20day", 2)]
    assert pairs == [("monday", 1), ("monday", 2), *rest]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_line_separators_in_statistics_do_not_end_a_commit(tmp_path: Path, separator: str) -> None:
    append(tmp_path, "monday", 1)
    earlier = opened(tmp_path)
    append(tmp_path, f"sun{separator}day", 2)
    assert changes_after(earlier, tmp_path).ids == [2]


def test_partitions_that_a_later_version_replaces_are_left_out_or_refused(
    tmp_path: Path, messages: Messages
) -> None:
    feed = {"delta.enableChangeDataFeed": "true"}
    append(tmp_path, "monday", 1, partition_by=["day"], configuration=feed)
    earlier = opened(tmp_path)
    append(tmp_path, "sunday", 2)
    replace = {"mode": "overwrite", "schema_mode": "overwrite", "configuration": feed}
    write_deltalake(
        tmp_path, pa.table({"id": [3], "month": ["May"]}), partition_by=["month"], **replace
    )
    rows = changes_after(earlier, tmp_path).good
    assert [(row["id"], row["month"]) for row in rows] == [(2, None), (3, "May")]
    write_deltalake(tmp_path, pa.table({"id": [4], "day": [5]}), partition_by=["day"], **replace)
    with messages.raises(BadInput):
        changes_after(earlier, tmp_path)


def test_binary_partitions_are_refused(tmp_path: Path, messages: Messages) -> None:
    rows = pa.table({"id": [1], "key": pa.array([b"\xff"], pa.binary())})
    write_deltalake(tmp_path, rows, partition_by=["key"])
    with messages.raises(BadInput):
        opened(tmp_path)


def test_rows_of_an_earlier_version_have_the_time_of_its_commit(tmp_path: Path) -> None:
    for moment in (1_000, 2_000, 3_000):
        append(tmp_path, "monday", moment)
        log = tmp_path / "_delta_log" / f"{moment // 1000 - 1:020}.json"
        actions = entries(log)
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] = moment
        log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    rows = read(tmp_path, version=1, changes="include").good
    assert {row["_commit_timestamp"].timestamp() for row in rows} == {2.0}
    DeltaTable(tmp_path).create_checkpoint()
    log.unlink()
    rows = read(tmp_path, changes="include").good
    assert {row["_commit_timestamp"] for row in rows} == {None}


def test_types_of_the_table_hold_for_files_without_a_column_and_with_narrower_types(
    tmp_path: Path,
) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([1], pa.int64()), "a": [{"x": 1}]}))
    newer = pa.table({"id": [2], "note": ["n"], "a": [{"x": 2, "y": "z"}]})
    write_deltalake(tmp_path, newer, mode="append", schema_mode="merge")
    narrow = pa.table({"id": pa.array([3], pa.int16())})
    pq.write_table(narrow, tmp_path / "narrow.parquet")
    add = {**next(iter(live_adds(tmp_path).values())), "path": "narrow.parquet"}
    commit(tmp_path, {"add": {**add, "size": (tmp_path / "narrow.parquet").stat().st_size}})
    source = opened(tmp_path)
    rows = sorted(source.read().good, key=lambda row: int(row["id"]))
    assert [(row["id"], row["note"]) for row in rows] == [(1, None), (2, "n"), (3, None)]
    assert [row["a"] for row in rows] == [{"x": 1, "y": None}, {"x": 2, "y": "z"}, None]
    assert {table.schema.field("id").type for table in source.read().tables} == {pa.int64()}
    assert source.given.types()["note"] == pa.string()


def test_value_that_does_not_fit_its_type_is_a_failed_row(tmp_path: Path) -> None:
    append(tmp_path, "monday", 1, 2)
    (path,) = live_adds(tmp_path)
    pq.write_table(pa.table({"id": ["1", "x"], "day": ["a", "b"]}), tmp_path / path)
    content = read(tmp_path)
    assert set(content.bad) == {(0, 1)}
    assert content.ids == [1]


def test_hive_timestamps_are_points_in_time(tmp_path: Path) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    rows = pa.table({"at": pa.array([moment], pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path, rows)
    (path,) = live_adds(tmp_path)
    pq.write_table(rows, tmp_path / path, use_deprecated_int96_timestamps=True)
    assert [row["at"] for row in read(tmp_path).good] == [moment]


def test_damaged_log_is_told_from_a_short_one(days: Path, messages: Messages) -> None:
    DeltaTable(days).create_checkpoint()
    for change in (lambda file: file.write_text("{"), Path.unlink):
        change(days / f"_delta_log/{0:020}.json")
        with messages.raises(BadInput):
            opened(days, version=0)


def test_incorrect_options_are_refused(days: Path, messages: Messages) -> None:
    enable_vectors(days)
    for options in (
        {"version": 9},
        {"columns": ["id", "dya"]},
        {"filter": "dya == 'x'"},
        {"filter": "id == 'x'"},
        {"filter": "id + 1"},
    ):
        with messages.raises(BadInput):
            opened(days, **options)
    with messages.raises(BadInput):
        opened(days / "nowhere")


@pytest.mark.parametrize(
    "path", ["../other/a.parquet", "/etc/passwd", "file:///etc/passwd", "s3://other/a.parquet"]
)
def test_files_outside_of_the_table_are_refused(days: Path, path: str, messages: Messages) -> None:
    add = next(iter(live_adds(days).values()))
    commit(days, {"add": {**add, "path": path}})
    with messages.raises(BadInput):
        opened(days)


def test_links_out_of_the_table_are_not_followed(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, "monday", 1)
    (path,) = live_adds(table)
    (table / path).rename(tmp_path / "secret.parquet")
    (table / path).symlink_to(tmp_path / "secret.parquet")
    content = read(table)
    assert (content.good, len(content.bad)) == ([], 1)


def test_unknown_features_are_refused_by_name(days: Path, messages: Messages) -> None:
    enable_vectors(days, "unknownFeature")
    with messages.raises(BadInput):
        opened(days)


def test_column_mapping_is_refused(tmp_path: Path, messages: Messages) -> None:
    append(tmp_path, "monday", 1)
    enable_vectors(tmp_path, "columnMapping")
    actions = entries(tmp_path / "_delta_log" / f"{0:020}.json")
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"]):
        names = {"physicalName": f"col-{number}", "id": number}
        field["metadata"] = {f"delta.columnMapping.{key}": value for key, value in names.items()}
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"] = {"delta.columnMapping.mode": "name"}
    commit(tmp_path, {"metaData": metadata})
    with messages.raises(BadInput):
        opened(tmp_path)
