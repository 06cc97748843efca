"""Opening an output whose path holds anything. It never deletes files of others.

`test_decisions` has all cases of the decision itself."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from batchinference.pipeline.commit.job_pass import JobPass, start_file
from batchinference.pipeline.commit.lease import Lease
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_state import Request, TableState, load_state
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.start_or_resume import Action, decide
from batchinference.pipeline.commit.start_over import Claim
from batchinference.pipeline.commit.table_commit import Fence, TableFiles
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.row_batch import merged
from batchinference.pipeline.storage.location import Location
from plugins.messages import Messages
from support.documents.parsed_write import write_of
from support.jobs.on_ray import data_files, write_lines
from support.outputs.batches import failed, good
from support.outputs.builders import (
    OURS,
    THEIRS,
    close_pass,
    commit_rows,
    layout_of,
    succeeded_report,
)


def open_output(layout: Layout, mode: str = "error", *, resume: bool = True) -> JobPass | None:
    """Begin or resume an output as a job does. Return None if there is nothing to do."""
    request = Request(write_of("parquet", layout.output.uri, mode=mode), resume)
    state = load_state(layout, request)
    action, lease = decide(state, request), state.lease
    if action is Action.ALREADY_COMPLETE:
        return None
    if action is Action.RESUME and lease is not None:
        start = JobPass(layout, lease).load_committed()
    else:
        lease = Claim(layout, lease, mode == "overwrite").claim_and_clear()
        source = write_lines(Path(layout.output.path).parent / "in", {"a.txt": ["x"]})
        content = snapshot_input([str(source)], []).serialized()
        layout.input.write(content)
        start = Snapshot(layout.key, digest(content))
    return JobPass.begin(layout, lease, start)


def opened(layout: Layout, mode: str = "error", *, resume: bool = True) -> JobPass:
    job_pass = open_output(layout, mode, resume=resume)
    assert job_pass is not None
    return job_pass


def start_in(job_pass: JobPass) -> Snapshot:
    """Return the snapshot of what counted when the pass began."""
    return Snapshot.read(start_file(job_pass.layout, job_pass.lease), job_pass.layout.key)


def a_run(layout: Layout, *, complete: bool) -> list[Path]:
    """Write what a job leaves: data file, error file, manifest and more. Return its part files."""
    job_pass = opened(layout, "overwrite")
    commit_rows(job_pass, merged([good(0, job_pass.number, [10]), failed(0, 0)]))
    if complete:
        job_pass.mark_complete(
            close_pass(job_pass, start_in(job_pass)), succeeded_report(layout.output.uri)
        )
    return parts_of(layout)


def parts_of(layout: Layout) -> list[Path]:
    """Return the existing data and error files."""
    return [file for path in (layout.output, layout.errors) for file in data_files(Path(path.path))]


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_storage_error_after_the_completion_marker_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = replace(layout_of(tmp_path / "out"), is_table=True)
    job_pass = opened(layout)
    monkeypatch.setattr(JobPass, "check_lease", Mock(side_effect=[*[None] * 3, OSError("busy")]))
    job_pass.mark_complete(start_in(job_pass), succeeded_report(layout.output.uri))
    assert job_pass.lease.has_completed(layout)


def test_lost_answer_to_the_write_of_the_completion_marker_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a failure would replace the one of the complete output, for `verify`, too."""
    layout = layout_of(tmp_path / "out")
    job_pass = opened(layout)
    write = Lease.write_success_marker

    def lost(self: Lease, *arguments: Any) -> None:
        write(self, *arguments)
        raise OSError("connection reset")

    monkeypatch.setattr(Lease, "write_success_marker", lost)
    job_pass.mark_complete(start_in(job_pass), succeeded_report(layout.output.uri))
    assert job_pass.lease.has_completed(layout)


def test_completion_marker_that_cannot_be_written_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(tmp_path / "out")
    job_pass = opened(layout)
    monkeypatch.setattr(Lease, "write_success_marker", Mock(side_effect=OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        job_pass.mark_complete(start_in(job_pass), succeeded_report(layout.output.uri))


MODES = pytest.mark.parametrize("mode", ["error", "overwrite"])


def test_late_commit_of_an_earlier_pass_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task checked that the pass is open right before another run took over the output."""
    layout = layout_of(tmp_path / "out")
    earlier = opened(layout)
    opened(layout)
    with monkeypatch.context() as patch:
        patch.setattr(JobPass, "check_can_commit", lambda self: None)
        commit_rows(earlier, good(0, 0, [10]))
    assert len(parts_of(layout)) == 1
    assert start_in(opened(layout)).entries == []
    assert parts_of(layout) == []


@pytest.mark.parametrize(
    ("key", "complete"),
    [(OURS, True), (THEIRS, True), (THEIRS, False)],
    ids=["the same work", "other work", "other work, unfinished"],
)
def test_overwrite_replaces_any_output_of_a_job(tmp_path: Path, key: str, complete: bool) -> None:
    a_run(layout_of(tmp_path / "out", key), complete=complete)
    layout = layout_of(tmp_path / "out")
    job_pass = opened(layout, "overwrite")
    assert job_pass.number == 2
    begun = f"attempts/{Path(job_pass.directory.path).name}"
    left = {"job.json", ".job.json.lock", "input.parquet"}
    left |= {f"{begun}/start.json", f"{begun}/heartbeat"}
    assert set(files_below(tmp_path / "out")) == {f"_batchinference/{name}" for name in left}
    assert json.loads(layout.lease_file.read())["work"] == OURS


@pytest.mark.parametrize("key", [OURS, THEIRS], ids=["same work", "other work"])
@pytest.mark.parametrize("done", range(4))
def test_interrupted_overwrite_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, done: int
) -> None:
    """The overwrite is interrupted after `done` of its deletions."""
    theirs = layout_of(tmp_path / "out", key)
    a_run(theirs, complete=True)
    deleted = itertools.count()
    delete = Location.delete

    def break_off(self: Location) -> None:
        if next(deleted) == done:
            raise OSError("storage is gone")
        delete(self)

    with monkeypatch.context() as patch:
        patch.setattr(Location, "delete", break_off)
        with pytest.raises(OSError, match="storage is gone"):
            open_output(layout_of(tmp_path / "out"), "overwrite")
    assert theirs.success.exists() == (done == 0), "half an output never looks whole"
    job_pass = opened(layout_of(tmp_path / "out"), "overwrite")
    assert start_in(job_pass).entries == parts_of(job_pass.layout) == []


@MODES
@pytest.mark.parametrize(
    "foreign", ["table.parquet", "deep/er/table.parquet", "_SUCCESS", ".hidden"]
)
def test_path_with_foreign_files_is_refused_in_any_mode(
    tmp_path: Path, mode: str, foreign: str, messages: Messages
) -> None:
    file = tmp_path / "out" / foreign
    file.parent.mkdir(parents=True)
    file.write_bytes(b"theirs")
    with messages.raises(BadOutput):
        open_output(layout_of(tmp_path / "out"), mode)
    assert files_below(tmp_path) == {f"out/{foreign}": b"theirs"}


@pytest.mark.parametrize("key", [OURS, THEIRS], ids=["same work", "other work"])
@MODES
def test_foreign_files_next_to_an_output_are_never_deleted(
    tmp_path: Path, key: str, mode: str
) -> None:
    shared = tmp_path / "errors"
    layout = layout_of(tmp_path / "out", key, shared)
    a_run(layout, complete=False)
    foreign = {
        tmp_path / "out" / "README.md": b"notes",
        tmp_path / "out" / "part-something.parquet": b"not ours",
        tmp_path / "out" / "deep" / (layout.file_prefix(1, 0, "0") + ".parquet"): b"a copy",
        shared / (layout_of(tmp_path, "c" * 64).file_prefix(1, 0, "0") + ".parquet"): b"other job",
    }
    for file, content in foreign.items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    try:
        open_output(layout_of(tmp_path / "out", OURS, shared), mode)
    except BadOutput:
        assert (key, mode) == (THEIRS, "error")
    assert {file: file.read_bytes() for file in foreign} == foreign


WRONG_FIELDS = {
    "work": ["00000", "", "A" * 64, "../" * 20, 3],
    "attempt": [-1, "1", 1.0, True, 10**9],
    "run": ["", "../../x", "0" * 31, 7],
    "begun": ["yes", 1],
    "job": [None, 3, "x" * 9000],
    "errors": [None, ["/"]],
    "series": ["../x", "0" * 64],
}


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_job_json_with_a_wrong_field_is_rejected(tmp_path: Path, field: str) -> None:
    layout = layout_of(tmp_path / "out")
    a_run(layout, complete=True)
    stored = json.loads(layout.lease_file.read())
    for value in WRONG_FIELDS[field]:
        if (field, value) == ("work", ""):  # valid in a claim of an output without a lease
            continue
        layout.lease_file.write(json.dumps(stored | {field: value}).encode())
        before = files_below(tmp_path)
        with pytest.raises(BadOutput, match=r"job\.json' is damaged"):
            open_output(layout, "overwrite")
        assert files_below(tmp_path) == before, value


@pytest.mark.parametrize("text", ["table", "out/../table", "out/deep/../../table"])
@pytest.mark.parametrize("state", ["_batchinference", "_batchinference/append-1"])
def test_overwrite_deletes_no_file_of_another_directory(
    tmp_path: Path, text: str, state: str
) -> None:
    """Somebody has changed the location of the error records in the state."""
    layout, work = layout_of(tmp_path / "out"), "0" * 64
    a_run(layout, complete=True)
    table = tmp_path / "table" / (layout_of(tmp_path, work).file_prefix(1, 0, "0") + ".parquet")
    table.parent.mkdir()
    table.write_bytes(b"another table")
    stored = json.loads(layout.lease_file.read()) | {"work": work, "errors": f"{tmp_path}/{text}"}
    (layout.output / state / "job.json").write(json.dumps(stored).encode())
    opened(layout, "overwrite")
    assert table.read_bytes() == b"another table"


def test_overwrite_deletes_no_file_behind_a_planted_link(
    tmp_path: Path, messages: Messages
) -> None:
    layout = layout_of(tmp_path / "out", THEIRS)
    a_run(layout, complete=True)
    theirs = (tmp_path / "out" / "_batchinference/errors").rename(tmp_path / "theirs")
    (tmp_path / "out" / "_batchinference/errors").symlink_to(theirs)
    files = data_files(theirs)
    assert files
    with messages.raises(BadOutput):
        opened(layout_of(tmp_path / "out"), "overwrite")
    assert data_files(theirs) == files


@pytest.mark.parametrize("text", ["out/_bad", "errors"])
def test_overwrite_deletes_the_bad_rows_of_the_earlier_job(tmp_path: Path, text: str) -> None:
    """They are below the output, or where this job writes its own error records."""
    errors = tmp_path / text
    earlier = layout_of(tmp_path / "out", THEIRS, errors)
    a_run(earlier, complete=True)
    assert data_files(errors)
    opened(layout_of(tmp_path / "out", OURS, errors), "overwrite")
    assert not data_files(errors)


def test_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(BadOutput, match=r"write\.path: '.*/out'"):
        open_output(layout_of(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "a file"


class UnreachableTable:
    """A table whose catalog does not respond."""

    def holds_rows(self) -> bool:
        raise ConnectionError("the catalog is away")

    def commit_count(self, mark: str) -> int:
        raise ConnectionError("the catalog is away")

    def register(self, rows: TableFiles, fence: Fence) -> None:
        raise AssertionError


@pytest.mark.parametrize("key", [OURS, THEIRS], ids=["complete", "of other work"])
def test_table_is_not_read_if_its_rows_do_not_matter(tmp_path: Path, key: str) -> None:
    a_run(layout_of(tmp_path / "out", key), complete=True)
    layout = layout_of(tmp_path / "out")
    state = load_state(layout, Request(write_of("delta", tmp_path / "out")), UnreachableTable())
    assert (state.complete, state.table) == (True, TableState())


class TableWithRows(UnreachableTable):
    """A table with rows of others."""

    def holds_rows(self) -> bool:
        return True


@pytest.mark.parametrize("complete", [True, False])
def test_restart_reads_table_if_the_output_is_of_other_work(tmp_path: Path, complete: bool) -> None:
    """That work may have written to another table."""
    a_run(layout_of(tmp_path / "out", THEIRS), complete=complete)
    write = write_of("delta", tmp_path / "out", mode="overwrite")
    request = Request(write, resume=False, own_only=True)
    state = load_state(layout_of(tmp_path / "out"), request, TableWithRows())
    assert state.table == TableState(has_rows=True)


def test_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    layout, write = layout_of(tmp_path / "out"), write_of("delta", tmp_path / "out")
    with pytest.raises(BadOutput, match="cannot be used: the catalog is away"):
        load_state(layout, Request(write), UnreachableTable())
    append = write_of("delta", tmp_path / "out", mode="append")
    assert load_state(layout, Request(append), UnreachableTable()).table == TableState()
