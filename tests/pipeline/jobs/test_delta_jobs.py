"""Whole jobs that read Delta tables: nightly additions, and resumes while the table changes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.minimal import Document
from support.inputs.delta_vectors import delete_positions, enable_vectors, live_adds
from support.jobs.crash_points import Place, Recording, on_disk, one_write_of_each_kind
from support.jobs.on_ray import Run, errors_of, job_document, run_in_process, without_order
from support.outputs.rows import Row, rows_of
from support.outputs.verify_command import verified
from support.servers.s3 import S3Server

FEED = {"delta.enableChangeDataFeed": "true"}
CHANGES = ("_change_type", "_commit_version")


def rows(*numbers: int, day: str = "monday") -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "day": [day] * len(numbers)})


def append(table: Path, *numbers: int, day: str = "monday", **options: Any) -> None:
    write_deltalake(table, rows(*numbers, day=day), mode="append", **options)


def night(table: Path, output: Path, mode: str = "append", **options: Any) -> Document:
    job = job_document("nightly", "unused", output, write={"mode": mode})
    job["spec"]["read"] = {"format": "delta", "path": str(table), "options": options}
    return job


def insert(table: Path) -> None:
    append(table, 100, 101)


def update(table: Path) -> None:
    DeltaTable(table).update(predicate="id IN (2, 100)", new_values={"day": "sunday"})


def delete(table: Path) -> None:
    DeltaTable(table).delete("id = 3")


def delete_partition(table: Path) -> None:
    DeltaTable(table).delete("day = 'tuesday'")


def merge(table: Path) -> None:
    source = rows(1, 200, day="merged")
    merger = DeltaTable(table).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def compact(table: Path) -> None:
    DeltaTable(table).optimize.compact()


def vacuum(table: Path) -> None:
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)


def add_column(table: Path) -> None:
    new = rows(300).append_column("note", pa.array(["new"]))
    write_deltalake(table, new, mode="append", schema_mode="merge")


def change_several_times(table: Path) -> None:
    for change in (insert, delete, compact, insert, update):
        change(table)


NIGHTS: list[Callable[[Path], None]] = [
    *(insert, update, compact, delete, vacuum, delete_partition, merge, change_several_times),
    *(vacuum, add_column, compact),
]


def ended(run: Run) -> Run:
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    return run


def plain(found: list[Row], names: tuple[str, ...]) -> list[str]:
    return without_order([{name: row.get(name) for name in names} for row in found])


@pytest.mark.parametrize("changes", ["inserts", "include"])
@pytest.mark.parametrize("parts", [[], ["day"]])
def test_nightly_job_reads_exactly_the_change_data_feed(
    tmp_path: Path, changes: str, parts: list[str]
) -> None:
    table, known = tmp_path / "table", list[Row]()
    tables = {"configuration": FEED, "partition_by": parts or None}
    append(table, 1, 2, 3, 4, **tables)
    job = night(table, tmp_path / "out", changes=changes)
    ended(run_in_process(job))
    first = [
        {**row, "_change_type": "insert", "_commit_version": 0} for row in rows_of(tmp_path / "out")
    ]
    assert len(first) == 4
    for change in NIGHTS:
        change(table)
        if change is not vacuum:  # it removes files of the feed, too
            known = [*known, *(row for row in feed_after(table, known))]
        ended(run_in_process(job))
    names = ("id", "day", "note", *(CHANGES if changes == "include" else ()))
    wanted = [row for row in known if changes == "include" or row["_change_type"] == "insert"]
    assert plain(rows_of(tmp_path / "out"), names) == plain([*first, *wanted], names)
    proof = verified(tmp_path / "out")
    assert (proof.exit_code, proof.found) == (0, {})


def feed_after(table: Path, known: list[Row]) -> list[Row]:
    """The changes after those that are known, as the library reads them."""
    last = max((row["_commit_version"] for row in known), default=0)
    if last == DeltaTable(table).version():
        return []
    reader = DeltaTable(table).load_cdf(starting_version=last + 1)
    found: list[Row] = pa.table(reader.read_all()).to_pylist()
    return found


def refusal(job: Document) -> str:
    """Run a job that is refused before its output changes; return its message."""
    run = run_in_process(job)
    assert (run.report.state, run.report.reason) == (JobState.FAILED, "BadInput")
    return re.sub(r"part-[^ ]*\.parquet", "FILE", str(run.report.message))


@on_disk
def test_job_killed_at_any_step_reads_the_same_rows_although_the_table_changes(
    place: Place,
) -> None:
    table, output = place.directory / "table", place.directory / "out"
    append(table, 1, 2, 3, configuration=FEED)
    job = night(table, output)
    ended(run_in_process(job))
    append(table, 4, 5, day="tuesday")
    append(table, 6, 7, day="tuesday")
    enable_vectors(table)
    delete_positions(table, [*live_adds(table)][-1], [0])
    recording = Recording(place, job)
    steps = recording.steps
    begun = next(n for n, step in enumerate(steps) if step.startswith("write part-"))
    written = (n for n, step in enumerate(steps) if step.startswith("write"))
    (success,) = (n for n in written if steps[n].endswith("0001/_SUCCESS"))
    delete_partition(table)
    append(table, 8)
    compact(table)

    def check(step: int) -> list[str]:
        ended(run_in_process(job))
        found = sorted(row["id"] for row in rows_of(output))
        before, now = [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]
        pinned = begun <= step <= success
        ended(run_in_process(job))
        later = sorted(row["id"] for row in rows_of(output))
        right = found == before or (found == now and not pinned)
        return [] if right and later == now else [f"{found}, and later {later}"]

    assert recording.faults(check, one_write_of_each_kind(steps)) == {}


def test_deleted_positions_are_changes_of_the_table(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 1, 2, 3, 4, configuration=FEED)
    jobs = {name: night(table, tmp_path / name, changes=name) for name in ("inserts", "include")}
    for job in jobs.values():
        ended(run_in_process(job))
    enable_vectors(table)
    (path,) = live_adds(table)
    delete_positions(table, path, [1])
    delete_positions(table, path, [1, 3], inline=True)
    append(table, 5)
    delete_positions(table, path, [3])
    for name, job in jobs.items():
        assert ended(run_in_process(job)).report.counts is not None, name
    names = ("id", *CHANGES)
    found = [tuple(row[name] for name in names) for row in rows_of(tmp_path / "include")]
    assert sorted(found) == [
        *((1, "insert", 0), (2, "delete", 2), (2, "insert", 0), (2, "insert", 5)),
        *((3, "insert", 0), (4, "delete", 3), (4, "insert", 0), (5, "insert", 4)),
    ]
    assert sorted(row["id"] for row in rows_of(tmp_path / "inserts")) == [1, 2, 2, 3, 4, 5]


def test_commit_that_rewrites_files_needs_a_change_data_feed(
    tmp_path: Path, messages: Messages
) -> None:
    table = tmp_path / "table"
    append(table, 1, 2, 3)
    job = night(table, tmp_path / "out")
    ended(run_in_process(job))
    DeltaTable(table).delete("id IN (1, 2, 3)")  # removes a whole file
    append(table, 4, 5)
    assert ended(run_in_process(job)).counts == (2, 2, 0, 0)
    DeltaTable(table).update(predicate="id = 4", new_values={"day": "friday"})
    messages.check(refusal(job))
    DeltaTable(table).alter.set_table_properties(FEED)
    append(table, 6)
    ended(run_in_process(night(table, tmp_path / "out", mode="overwrite")))
    assert sorted(row["id"] for row in rows_of(tmp_path / "out")) == [4, 5, 6]
    DeltaTable(table).update(predicate="id = 4", new_values={"day": "sunday"})
    append(table, 7)
    assert ended(run_in_process(job)).counts == (3, 1, 0, 2)


def test_vacuum_and_a_short_log_are_errors_that_name_the_version(
    tmp_path: Path, messages: Messages
) -> None:
    table = tmp_path / "table"
    append(table, 1, configuration=FEED)
    job = night(table, tmp_path / "out")
    ended(run_in_process(job))
    append(table, 2)
    delete(table)
    compact(table)
    vacuum(table)
    messages.check(refusal(job))
    messages.check(refusal(night(table, tmp_path / "old", version=0)))
    log = table / "_delta_log"
    DeltaTable(table).create_checkpoint()
    (log / f"{1:020}.json").unlink()
    messages.check(refusal(job))
    messages.check(refusal(night(table, tmp_path / "old", version=1)))
    assert sorted(row["id"] for row in rows_of(tmp_path / "out")) == [1]


def test_first_output_that_starts_over_leaves_the_rows_of_additions(tmp_path: Path) -> None:
    table, output = tmp_path / "table", tmp_path / "out"
    append(table, 1, 2)
    job = night(table, output)
    ended(run_in_process(job))
    append(table, 3)
    ended(run_in_process(job))
    append(table, 4)
    for marker in output.glob("_batchinference/append-*/_SUCCESS"):
        if not marker.parent.name.endswith("-0001"):
            marker.unlink()
    (output / "_SUCCESS").unlink(missing_ok=True)
    again = night(table, output)
    again["spec"]["resume"] = False
    ended(run_in_process(again))
    assert sorted(row["id"] for row in rows_of(output)) == [1, 2, 3]
    ended(run_in_process(job))
    assert sorted(row["id"] for row in rows_of(output)) == [1, 2, 3, 4]


def test_pinned_version_is_read_once(tmp_path: Path) -> None:
    append(tmp_path / "table", 1)
    append(tmp_path / "table", 2)
    job = night(tmp_path / "table", tmp_path / "out", version=0)
    assert ended(run_in_process(job)).counts == (1, 1, 0, 0)
    assert ended(run_in_process(job)).counts == (1, 1, 0, 0)
    assert rows_of(tmp_path / "out") == rows(1).to_pylist()


def test_damaged_data_file_becomes_a_failed_row(tmp_path: Path) -> None:
    append(tmp_path / "table", 1)
    append(tmp_path / "table", 2)
    damaged = tmp_path / "table" / next(iter(live_adds(tmp_path / "table")))
    damaged.write_bytes(b"PAR1" + b"\0" * (damaged.stat().st_size - 8) + b"PAR1")
    job = night(tmp_path / "table", tmp_path / "out", mode="error")
    job["spec"]["errors"] = {"maxRows": 1}
    assert ended(run_in_process(job)).counts == (2, 1, 1, 0)
    (error,) = errors_of(tmp_path / "out")
    assert (error["path"], error["step"]) == (str(damaged), "read")
    assert verified(tmp_path / "out").exit_code == 0


def test_nights_without_new_rows_pass_versions_whose_log_is_removed_later(tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 1, configuration=FEED)
    append(table, 2)
    job = night(table, tmp_path / "out")
    ended(run_in_process(job))
    compact(table)
    set_properties = DeltaTable(table).alter.set_table_properties
    set_properties({"delta.logRetentionDuration": "interval 1 days"})
    assert ended(run_in_process(job)).counts == (0, 0, 0, 0)
    DeltaTable(table).create_checkpoint()
    for version in (1, 2):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    append(table, 4)
    assert ended(run_in_process(job)).counts == (1, 1, 0, 0)
    assert ended(run_in_process(job)).counts == (3, 3, 0, 0), "all parts, as nothing is new"
    assert verified(tmp_path / "out").exit_code == 0


def test_table_on_s3_is_read_with_its_storage(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.client().create_bucket(Bucket="delta")
    table, options = tmp_path / "table", {"partition_by": ["day"], "configuration": FEED}
    append(table, 1, 2, day="fri day", **options)
    enable_vectors(table)
    (path,) = live_adds(table)
    delete_positions(table, path, [0])
    job = night(table, tmp_path / "out", changes="include")
    job["spec"]["read"]["path"] = "s3://delta/table"
    copy_to(s3, table)
    ended(run_in_process(job))
    delete_positions(table, path, [0, 1])
    append(table, 3, day="sat/day")
    copy_to(s3, table)
    ended(run_in_process(job))
    found = [(row["id"], row["day"], row["_change_type"]) for row in rows_of(tmp_path / "out")]
    assert sorted(found) == [
        *((2, "fri day", "delete"), (2, "fri day", "insert"), (3, "sat/day", "insert")),
    ]
    assert verified(tmp_path / "out").found == {}


def copy_to(s3: S3Server, table: Path) -> None:
    """Copy a table to s3://delta/table."""
    files = (file for file in table.rglob("*") if file.is_file())
    s3.put("delta", {f"table/{file.relative_to(table)}": file.read_bytes() for file in files})


def test_table_that_was_created_again_is_not_read_as_changes(
    tmp_path: Path, messages: Messages
) -> None:
    table = tmp_path / "table"
    append(table, 1)
    job = night(table, tmp_path / "out")
    ended(run_in_process(job))
    shutil.rmtree(table)
    for number in (2, 3, 4):
        append(table, number)
    messages.check(refusal(job))


def test_later_version_is_a_remark_of_a_complete_output(tmp_path: Path) -> None:
    table, remark = tmp_path / "table", "has version"
    append(table, 1)
    job = night(table, tmp_path / "out", mode="error")
    assert remark not in str(ended(run_in_process(job)).report.message)
    append(table, 2)
    assert remark in str(ended(run_in_process(job)).report.message)
    ended(run_in_process(night(table, tmp_path / "out")))
    assert remark not in str(ended(run_in_process(job)).report.message)


def test_changed_spec_does_not_add_the_rows_of_a_compacted_table_again(
    tmp_path: Path, messages: Messages
) -> None:
    table = tmp_path / "table"
    append(table, 1)
    append(table, 2)
    job = night(table, tmp_path / "out")
    ended(run_in_process(job))
    compact(table)
    job["spec"]["steps"] = [{"name": "positive", "filter": "id > 0"}]
    refused = run_in_process(job)
    assert (refused.report.state, refused.report.reason) == (JobState.FAILED, "BadOutput")
    messages.check(str(refused.report.message))
    assert sorted(row["id"] for row in rows_of(tmp_path / "out")) == [1, 2]


def test_first_run_refuses_a_column_with_which_later_runs_would_fail(
    tmp_path: Path, messages: Messages
) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1], "_commit_version": [5]}))
    messages.check(refusal(night(table, tmp_path / "out")))
    jobs = [
        night(table, tmp_path / "latest", mode="overwrite"),
        night(table, tmp_path / "pinned", version=0),
    ]
    for job in jobs:
        ended(run_in_process(job))
        assert rows_of(Path(job["spec"]["write"]["path"])) == [{"id": 1, "_commit_version": 5}]
