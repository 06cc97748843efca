"""Whole jobs that read versions of Delta and Iceberg tables: nightly additions, and resumes while
the table changes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.minimal import Document
from support.inputs.delta_vectors import delete_positions, enable_vectors, live_adds
from support.inputs.iceberg import data_files
from support.inputs.iceberg import rows_of as iceberg_rows
from support.inputs.nightly_tables import FEED, NightlyDelta, NightlyIceberg, NightlyTable
from support.jobs.crash_points import Recording, Site, on_disk, one_write_of_each_kind
from support.jobs.on_ray import Run, errors_of, run_in_process
from support.outputs.rows import Row, rows_of
from support.outputs.verify_command import verified
from support.servers.s3 import S3Server

Make = Callable[[Path], NightlyTable]
FORMATS = {"delta": NightlyDelta, "iceberg": NightlyIceberg}
each_format = pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)


def ended(run: Run) -> Run:
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    return run


def refusal(job: Document, reason: str = "BadInput") -> str:
    """Run a job that is refused before its output changes; return its message."""
    run = run_in_process(job)
    assert (run.report.state, run.report.reason) == (JobState.FAILED, reason)
    return re.sub(r"(part|00000)-[^ ]*\.parquet", "FILE", str(run.report.message))


def ids_in(output: Path) -> list[int]:
    return sorted(row["id"] for row in rows_of(output))


@pytest.mark.parametrize("changes", ["inserts", "include"])
@pytest.mark.parametrize(
    "make", [NightlyDelta, partial(NightlyDelta, partition_by=["day"]), NightlyIceberg]
)
def test_nightly_job_reads_exactly_the_changes_of_each_commit(
    tmp_path: Path, changes: str, make: Make
) -> None:
    table, output, known = make(tmp_path), tmp_path / "out", list[Row]()
    table.append(1, 2, 3, 4)
    job = table.job(output, changes=changes)
    for change in (lambda: None, *table.days):
        change()
        if change != table.clean:  # it removes what the library needs to tell the changes
            known += table.new_changes()
        ended(run_in_process(job))
    wanted = [row for row in known if changes == "include" or row["_change_type"] == "insert"]
    assert table.plain(rows_of(output), changes) == table.plain(wanted, changes)
    assert verified(output).counts == {}


@on_disk
@each_format
def test_job_killed_at_any_step_reads_the_same_rows_although_the_table_changes(
    site: Site, make: Make
) -> None:
    table, output = make(site.directory / "table"), site.directory / "out"
    table.append(1, 2, 3)
    job = table.job(output)
    ended(run_in_process(job))
    table.append(4, 5)
    table.append(6, 7)
    before = [*range(1, 8), *table.merge_on_read()]
    recording = Recording(site, job)
    steps = recording.steps
    begun = next(n for n, step in enumerate(steps) if step.startswith("write part-"))
    written = (n for n, step in enumerate(steps) if step.startswith("write"))
    (success,) = (n for n in written if steps[n].endswith("0001/_SUCCESS"))
    table.delete(4, 5)  # a whole file: with deletion vectors, the library writes no feed
    table.append(8)
    table.compact()
    now = sorted([*before, 8])

    def check(step: int) -> list[str]:
        ended(run_in_process(job))
        ids, pinned = ids_in(output), begun <= step <= success
        ended(run_in_process(job))
        right = ids == before or (ids == now and not pinned)
        return [] if right and ids_in(output) == now else [f"{ids}, later {ids_in(output)}"]

    assert recording.faults(check, one_write_of_each_kind(steps)) == {}


@each_format
def test_pinned_version_is_read_once(tmp_path: Path, make: Make) -> None:
    table = make(tmp_path)
    table.append(1)
    job = table.job(tmp_path / "out", **table.version)
    table.append(2)
    for _ in range(2):
        assert ended(run_in_process(job)).counts == (1, 1, 0, 0)
    assert ids_in(tmp_path / "out") == [1]


@each_format
def test_changed_spec_does_not_add_the_rows_of_a_compacted_table_again(
    tmp_path: Path, make: Make, messages: Messages
) -> None:
    table = make(tmp_path)
    table.append(1)
    table.append(2)
    job = table.job(tmp_path / "out")
    ended(run_in_process(job))
    table.compact()
    job["spec"]["steps"] = [{"name": "positive", "filter": "id > 0"}]
    messages.check(refusal(job, "BadOutput"))
    assert ids_in(tmp_path / "out") == [1, 2]


@pytest.mark.parametrize("name", ["_commit_version", "_change_ordinal"])
def test_first_run_refuses_a_column_with_which_later_runs_would_fail(
    tmp_path: Path, name: str, messages: Messages
) -> None:
    rows = pa.table({"id": [1], name: [5]})
    if name == "_change_ordinal":
        messages.check(refusal(NightlyIceberg(tmp_path, rows.schema).job(tmp_path / "out")))
        return
    table = NightlyDelta(tmp_path)
    write_deltalake(table.path, rows)
    messages.check(refusal(table.job(tmp_path / "out")))
    for mode, version in (("overwrite", {}), ("append", table.version)):
        ended(run_in_process(table.job(tmp_path / mode, mode, **version)))
        assert rows_of(tmp_path / mode) == rows.to_pylist()


def test_deleted_positions_are_changes_of_the_table(tmp_path: Path) -> None:
    table = NightlyDelta(tmp_path)
    table.append(1, 2, 3, 4)
    jobs = [table.job(tmp_path / name, changes=name) for name in ("inserts", "include")]
    for job in jobs:
        ended(run_in_process(job))
    enable_vectors(table.path)
    (path,) = live_adds(table.path)
    delete_positions(table.path, path, [1])
    delete_positions(table.path, path, [1, 3], inline=True)
    table.append(5)
    delete_positions(table.path, path, [3])
    for job in jobs:
        ended(run_in_process(job))
    names = ("id", *table.changed)
    result = [tuple(row[name] for name in names) for row in rows_of(tmp_path / "include")]
    assert sorted(result) == [
        *((1, "insert", 0), (2, "delete", 2), (2, "insert", 0), (2, "insert", 5)),
        *((3, "insert", 0), (4, "delete", 3), (4, "insert", 0), (5, "insert", 4)),
    ]
    assert ids_in(tmp_path / "inserts") == [1, 2, 2, 3, 4, 5]


def test_commit_that_rewrites_files_needs_a_change_data_feed(
    tmp_path: Path, messages: Messages
) -> None:
    table = NightlyDelta(tmp_path, configuration=None)
    table.append(1, 2, 3)
    job = table.job(tmp_path / "out")
    ended(run_in_process(job))
    table.table.delete("id IN (1, 2, 3)")  # removes a whole file
    table.append(4, 5)
    assert ended(run_in_process(job)).counts == (2, 2, 0, 0)
    table.update("id = 4", "friday")
    messages.check(refusal(job))
    table.table.alter.set_table_properties(FEED)
    table.append(6)
    ended(run_in_process(table.job(tmp_path / "out", "overwrite")))
    assert ids_in(tmp_path / "out") == [4, 5, 6]
    table.update("id = 4")
    table.append(7)
    assert ended(run_in_process(job)).counts == (3, 1, 0, 2)


def test_vacuum_and_a_short_log_are_errors_that_name_the_version(
    tmp_path: Path, messages: Messages
) -> None:
    table = NightlyDelta(tmp_path)
    table.append(1)
    job = table.job(tmp_path / "out")
    ended(run_in_process(job))
    table.append(2)
    table.delete()
    table.compact()
    table.clean()
    messages.check(refusal(job), refusal(table.job(tmp_path / "old", version=0)))
    table.table.create_checkpoint()
    (table.path / "_delta_log" / f"{1:020}.json").unlink()
    messages.check(refusal(job), refusal(table.job(tmp_path / "old", version=1)))
    assert ids_in(tmp_path / "out") == [1]


def test_snapshots_that_expire_too_early_are_an_error_that_names_them(
    tmp_path: Path, messages: Messages
) -> None:
    table = NightlyIceberg(tmp_path)
    table.append(1)
    read = table.version["snapshot"]
    job = table.job(tmp_path / "out")
    ended(run_in_process(job))
    table.append(2)
    table.delete()
    table.append(3)
    table.clean()
    messages.check(refusal(job).replace(str(read), "READ"))
    assert ids_in(tmp_path / "out") == [1]
    ended(run_in_process(table.job(tmp_path / "out", "overwrite")))
    assert ids_in(tmp_path / "out") == [1, 2, 3]


def test_data_file_that_is_gone_is_named_in_an_error(tmp_path: Path, messages: Messages) -> None:
    table = NightlyIceberg(tmp_path)
    table.append(1)
    first = table.version
    table.table.overwrite(iceberg_rows([2]))
    (live,) = data_files(table.table)
    for file in Path(table.table.location().removeprefix("file://"), "data").rglob("*.parquet"):
        if f"file://{file}" != live.file_path:
            file.unlink()
    message = refusal(table.job(tmp_path / "out", **first))
    messages.check(message.replace(str(first["snapshot"]), "SNAPSHOT"))


@each_format
def test_damaged_data_file_becomes_a_failed_row(tmp_path: Path, make: Make) -> None:
    table, output = make(tmp_path), tmp_path / "out"
    table.append(1)
    table.append(2)
    damaged, _ = tmp_path.rglob("*.parquet")
    damaged.write_bytes(b"PAR1" + b"\0" * (damaged.stat().st_size - 8) + b"PAR1")
    job = table.job(output, mode="error")
    job["spec"]["errors"] = {"maxRows": 1}
    assert ended(run_in_process(job)).counts == (2, 1, 1, 0)
    (error,) = errors_of(output)
    assert (Path(error["path"]).name, error["step"]) == (damaged.name, "read")
    assert verified(output).exit_code == 0


def test_job_that_began_with_an_empty_table_reads_all_rows_of_the_next_run(tmp_path: Path) -> None:
    table = NightlyIceberg(tmp_path)
    job = table.job(tmp_path / "out", changes="include")
    assert ended(run_in_process(job)).counts == (0, 0, 0, 0)
    table.append(1)
    table.append(2)
    table.clean()
    ended(run_in_process(job))
    table.append(3)
    ended(run_in_process(job))
    pairs = [(row["id"], row["_change_type"]) for row in rows_of(tmp_path / "out")]
    assert sorted(pairs) == [(1, "insert"), (2, "insert"), (3, "insert")]


def test_first_output_that_starts_over_leaves_the_rows_of_additions(tmp_path: Path) -> None:
    table, output = NightlyDelta(tmp_path), tmp_path / "out"
    table.append(1, 2)
    job = table.job(output)
    ended(run_in_process(job))
    table.append(3)
    ended(run_in_process(job))
    table.append(4)
    for marker in output.glob("_batchinference/append-*/_SUCCESS"):
        if not marker.parent.name.endswith("-0001"):
            marker.unlink()
    (output / "_SUCCESS").unlink(missing_ok=True)
    again = table.job(output)
    again["spec"]["resume"] = False
    ended(run_in_process(again))
    assert ids_in(output) == [1, 2, 3]
    ended(run_in_process(job))
    assert ids_in(output) == [1, 2, 3, 4]


def test_nights_without_new_rows_pass_versions_whose_log_is_removed_later(tmp_path: Path) -> None:
    table = NightlyDelta(tmp_path)
    table.append(1)
    table.append(2)
    job = table.job(tmp_path / "out")
    ended(run_in_process(job))
    table.compact()
    table.table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    assert ended(run_in_process(job)).counts == (0, 0, 0, 0)
    table.table.create_checkpoint()
    for version in (1, 2):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()
    table.append(4)
    assert ended(run_in_process(job)).counts == (1, 1, 0, 0)
    assert ended(run_in_process(job)).counts == (3, 3, 0, 0), "all parts, as nothing is new"
    assert verified(tmp_path / "out").exit_code == 0


def test_table_on_s3_is_read_with_its_storage(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    table = NightlyDelta(tmp_path, partition_by=["day"])
    table.append(1, 2, day="fri day")
    enable_vectors(table.path)
    (path,) = live_adds(table.path)
    delete_positions(table.path, path, [0])
    job = table.job(tmp_path / "out", changes="include")
    job["spec"]["read"]["path"] = f"s3://{bucket}/table"
    copy_to(s3, bucket, table.path)
    ended(run_in_process(job))
    delete_positions(table.path, path, [0, 1])
    table.append(3, day="sat/day")
    copy_to(s3, bucket, table.path)
    ended(run_in_process(job))
    rows = [(row["id"], row["day"], row["_change_type"]) for row in rows_of(tmp_path / "out")]
    assert sorted(rows) == [
        *((2, "fri day", "delete"), (2, "fri day", "insert"), (3, "sat/day", "insert"))
    ]
    assert verified(tmp_path / "out").counts == {}


def copy_to(s3: S3Server, bucket: str, table: Path) -> None:
    """Copy a table to the directory `table` of a bucket."""
    files = (file for file in table.rglob("*") if file.is_file())
    s3.put(bucket, {f"table/{file.relative_to(table)}": file.read_bytes() for file in files})


def test_table_that_was_created_again_is_not_read_as_changes(
    tmp_path: Path, messages: Messages
) -> None:
    table = NightlyDelta(tmp_path)
    table.append(1)
    job = table.job(tmp_path / "out")
    ended(run_in_process(job))
    shutil.rmtree(table.path)
    for number in (2, 3, 4):
        table.append(number)
    messages.check(refusal(job))


def test_later_version_is_a_remark_of_a_complete_output(tmp_path: Path) -> None:
    table, remark = NightlyDelta(tmp_path), "has version"
    table.append(1)
    job = table.job(tmp_path / "out", mode="error")
    assert remark not in str(ended(run_in_process(job)).report.message)
    table.append(2)
    assert remark in str(ended(run_in_process(job)).report.message)
    ended(run_in_process(table.job(tmp_path / "out")))
    assert remark not in str(ended(run_in_process(job)).report.message)
