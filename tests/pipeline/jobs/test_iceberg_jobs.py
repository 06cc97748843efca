"""Whole jobs that read Iceberg tables: nightly additions, and resumes while the table changes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import StringType

from batchinference.spec.report import JobState
from plugins.messages import Messages
from support.documents.minimal import Document
from support.inputs.iceberg import (
    compact,
    data_files,
    delete_rows,
    expire_but_latest,
    new_table,
    read_fields,
    snapshot_of,
)
from support.inputs.iceberg import rows_of as ids
from support.jobs.crash_points import Place, Recording, on_disk, one_write_of_each_kind
from support.jobs.on_ray import Run, job_document, run_in_process, without_order
from support.outputs.rows import Row, rows_of
from support.outputs.verify_command import verified

CHANGES = ("_change_type", "_commit_snapshot_id")


def night(place: Path, output: Path, mode: str = "append", **options: object) -> Document:
    job = job_document("nightly", "unused", output, write={"mode": mode})
    job["spec"]["read"] = read_fields(place, **options)
    return job


def insert(table: Table) -> None:
    table.append(ids([100, 101]))
    table.append(ids([100]))


def update(table: Table) -> None:
    """Copies the other rows of files: 1 and 3 are in the old and in the new file."""
    table.overwrite(ids([2, 200], "new "), "id == 2")


def delete(table: Table) -> None:
    table.delete("id == 3")


def delete_files(table: Table) -> None:
    table.delete("id >= 100")


def merge_on_read(table: Table) -> None:
    first, *_ = sorted(data_files(table), key=lambda file: file.file_path)
    added = ids([300], "merged ").rename_columns(table.schema().column_names[:2])
    delete_rows(table, {first.file_path: [0]}, added=added)


def vectors(table: Table) -> None:
    last = max(data_files(table), key=lambda file: file.record_count)
    delete_rows(table, {last.file_path: [last.record_count - 1]}, vectors=True)


def add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column("text", "words")
    new = [{"id": 400, "words": "new", "note": "note"}]
    table.append(pa.Table.from_pylist(new, schema=table.refresh().schema().as_arrow()))


def change_several_times(table: Table) -> None:
    for change in (insert, delete, compact, insert, merge_on_read, update):
        change(table.refresh())


NIGHTS: list[Callable[[Table], None]] = [
    *(insert, update, compact, delete, expire_but_latest, merge_on_read, insert, vectors),
    *(vectors, delete_files, expire_but_latest, insert, change_several_times, compact),
    *(add_column, merge_on_read, expire_but_latest),
]


def ended(run: Run) -> Run:
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    return run


def feed_after(table: Table, last: int | None) -> Iterator[Row]:
    """Yield the changes after a snapshot: the differences between what the library reads."""
    known = {snapshot.snapshot_id: snapshot for snapshot in table.refresh().snapshots()}
    commits: list[Snapshot] = []
    now = snapshot_of(table)
    while now != last:
        commits.append(known[now])
        now = known[now].parent_snapshot_id
    for commit in reversed(commits):
        if commit.summary and commit.summary.operation is Operation.REPLACE:
            continue
        before, after = (
            contents(table, each) for each in (commit.parent_snapshot_id, commit.snapshot_id)
        )
        for kind, rows in (("delete", before - after), ("insert", after - before)):
            for row in rows.elements():
                yield {
                    **dict(json.loads(row)),
                    "_change_type": kind,
                    "_commit_snapshot_id": commit.snapshot_id,
                }


def contents(table: Table, snapshot: int | None) -> Counter[str]:
    if snapshot is None:
        return Counter()
    rows = table.scan(snapshot_id=snapshot).to_arrow()
    names = {"text": "words"} if "words" in table.schema().column_names else {}
    rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    values = (
        {name: row[name] for name in row if row[name] is not None} for row in rows.to_pylist()
    )
    return Counter(json.dumps(row, sort_keys=True) for row in values)


def plain(found: list[Row], names: tuple[str, ...]) -> list[str]:
    one_name = [{**row, "text": row.get("words") or row.get("text")} for row in found]
    return without_order([{name: row.get(name) for name in names} for row in one_name])


@pytest.mark.parametrize("changes", ["inserts", "include"])
def test_nightly_job_reads_exactly_the_changes_of_each_commit(tmp_path: Path, changes: str) -> None:
    table, known = new_table(tmp_path), list[Row]()
    last: int | None = None
    table.append(ids([1, 2, 3, 4]))
    job = night(tmp_path, tmp_path / "out", changes=changes)
    for change in (lambda _: None, *NIGHTS):
        change(table.refresh())
        if change is not expire_but_latest:
            known += feed_after(table, last)
            last = snapshot_of(table)
        ended(run_in_process(job))
    names = ("id", "text", "note", *(CHANGES if changes == "include" else ()))
    wanted = [row for row in known if changes == "include" or row["_change_type"] == "insert"]
    assert plain(rows_of(tmp_path / "out"), names) == plain(wanted, names)
    assert verified(tmp_path / "out", "--quick").found == {}


@on_disk
def test_job_killed_at_any_step_reads_the_same_rows_although_the_table_changes(
    place: Place,
) -> None:
    output = place.directory / "out"
    table = new_table(place.directory / "table")
    table.append(ids([1, 2, 3]))
    job = night(place.directory / "table", output)
    ended(run_in_process(job))
    table.append(ids([4, 5]))
    table.append(ids([6, 7]))
    merge_on_read(table)
    recording = Recording(place, job)
    steps = recording.steps
    begun = next(n for n, step in enumerate(steps) if step.startswith("write part-"))
    written = (n for n, step in enumerate(steps) if step.startswith("write"))
    (success,) = (n for n in written if steps[n].endswith("0001/_SUCCESS"))
    table.delete("id == 4")
    table.append(ids([8]))
    compact(table)

    def check(step: int) -> list[str]:
        ended(run_in_process(job))
        found = sorted(row["id"] for row in rows_of(output))
        pinned = begun <= step <= success
        ended(run_in_process(job))
        later = sorted(row["id"] for row in rows_of(output))
        before, now = [*range(1, 8), 300], [*range(1, 9), 300]
        right = found == before or (found == now and not pinned)
        return [] if right and later == now else [f"{found}, and later {later}"]

    assert recording.faults(check, one_write_of_each_kind(steps)) == {}


def test_snapshots_that_expire_too_early_are_an_error_that_names_them(
    tmp_path: Path, messages: Messages
) -> None:
    table = new_table(tmp_path)
    table.append(ids([1]))
    read = snapshot_of(table)
    job = night(tmp_path, tmp_path / "out")
    ended(run_in_process(job))
    table.append(ids([2]))
    delete(table)
    table.append(ids([3]))
    expire_but_latest(table)
    run = run_in_process(job)
    assert (run.report.state, run.report.reason) == (JobState.FAILED, "BadInput")
    messages.check(str(run.report.message).replace(str(read), "READ"))
    assert [row["id"] for row in rows_of(tmp_path / "out")] == [1]
    ended(run_in_process(night(tmp_path, tmp_path / "out", mode="overwrite")))
    assert sorted(row["id"] for row in rows_of(tmp_path / "out")) == [1, 2, 3]


def test_data_file_that_is_gone_is_an_error_that_names_it(
    tmp_path: Path, messages: Messages
) -> None:
    table = new_table(tmp_path)
    table.append(ids([1]))
    first = snapshot_of(table)
    table.overwrite(ids([2]))
    (live,) = data_files(table)
    for file in Path(table.location().removeprefix("file://"), "data").rglob("*.parquet"):
        if f"file://{file}" != live.file_path:
            file.unlink()
    run = run_in_process(night(tmp_path, tmp_path / "out", snapshot=first))
    assert (run.report.state, run.report.reason) == (JobState.FAILED, "BadInput")
    message = re.sub(r"00000-[^ ]*\.parquet", "FILE", str(run.report.message))
    messages.check(message.replace(str(first), "SNAPSHOT"))


def test_pinned_snapshot_is_read_once(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ids([1]))
    job = night(tmp_path, tmp_path / "out", snapshot=snapshot_of(table))
    table.append(ids([2]))
    for _ in range(2):
        assert ended(run_in_process(job)).counts == (1, 1, 0, 0)
    assert rows_of(tmp_path / "out") == ids([1]).to_pylist()


def test_job_that_began_with_an_empty_table_reads_all_rows_of_the_next_run(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    job = night(tmp_path, tmp_path / "out", changes="include")
    assert ended(run_in_process(job)).counts == (0, 0, 0, 0)
    table.append(ids([1]))
    table.append(ids([2]))
    expire_but_latest(table)
    ended(run_in_process(job))
    table.append(ids([3]))
    ended(run_in_process(job))
    found = [(row["id"], row["_change_type"]) for row in rows_of(tmp_path / "out")]
    assert sorted(found) == [(1, "insert"), (2, "insert"), (3, "insert")]


def test_first_run_refuses_a_column_with_which_later_runs_would_fail(
    tmp_path: Path, messages: Messages
) -> None:
    new_table(tmp_path / "table", pa.schema([("_change_ordinal", pa.int64())]))
    run = run_in_process(night(tmp_path / "table", tmp_path / "out"))
    assert (run.report.state, run.report.reason) == (JobState.FAILED, "BadInput")
    messages.check(str(run.report.message))


def test_changed_spec_does_not_add_the_rows_of_a_compacted_table_again(tmp_path: Path) -> None:
    table = new_table(tmp_path / "table")
    table.append(ids([1]))
    table.append(ids([2]))
    job = night(tmp_path / "table", tmp_path / "out")
    assert run_in_process(job).report.state == JobState.SUCCEEDED
    compact(table)
    job["spec"]["steps"] = [{"name": "positive", "filter": "id > 0"}]
    refused = run_in_process(job).report
    assert (refused.state, refused.reason) == (JobState.FAILED, "BadOutput")
    assert sorted(row["id"] for row in rows_of(tmp_path / "out")) == [1, 2]
