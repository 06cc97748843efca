"""The input of a resumed job: files whose rows are still needed must not have changed."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.execution.prepared_pass import PreparedPass
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.changed_files import (
    FileChanges,
    NoNewFiles,
    ProcessedFiles,
    ReplacementRule,
    ResumedInput,
)
from batchinference.pipeline.input.input_snapshot import InputSnapshot, digest, read_snapshot
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.row_batch import merged
from batchinference.pipeline.storage.location import Location
from batchinference.spec.report import JobState, Report
from batchinference.spec.storage import FROM_ENVIRONMENT
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.jobs.on_ray import data_files, job_document, run_in_process, write_lines
from support.outputs.batches import end, good
from support.outputs.builders import OURS, begin_job, commit_rows, entry
from support.outputs.rows import rows_of

LINES = {f"{name}.txt": [f"{name} {n}" for n in range(4)] for name in "abc"}
REFUSED, POSSIBLE = ReplacementRule(), ReplacementRule(possible=True)
FIRST_FILE = merged([good(0, 0, pa.table({"text": LINES["a.txt"]})), end(0, 4)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in", LINES)


def done(*files: int) -> Snapshot:
    """Return a snapshot in which all four rows of these files are committed."""
    return Snapshot(OURS, "", [entry([(file, 0, 4)]) for file in files], dict.fromkeys(files, 4))


def check(
    source: Path, before: Snapshot, change: str = "", rule: ReplacementRule = REFUSED
) -> set[int]:
    """Take an input snapshot, change a file, and check it. Return the numbers of missing files."""
    frozen = snapshot_input([str(source)], [])
    match change.split():
        case ["write", name, content]:
            (source / name).write_text(content)
        case ["touch", name]:
            os.utime(source / name, ns=(1, 1))
        case ["remove", name]:
            (source / name).unlink()
    resumed = ResumedInput(frozen, lambda each: before.missing_rows(len(frozen), each), rule)
    return {*resumed.check(snapshot_input([str(source)], []), None).kept}


def test_unchanged_input_is_accepted(source: Path) -> None:
    assert check(source, done()) == check(source, done(0, 1, 2)) == set()


def test_new_files_are_ignored(source: Path) -> None:
    assert check(source, done(0), "write aa.txt new") == set()


@pytest.mark.parametrize("finished", [(), (1,), (0, 1, 2)], ids=["not begun", "finished", "all"])
def test_file_of_another_size_is_named_with_both(
    source: Path, finished: tuple[int, ...], messages: Messages
) -> None:
    with messages.raises(BadInput):
        check(source, done(*finished), "write b.txt short")


@pytest.mark.parametrize("change", ["write b.txt short", "remove b.txt"], ids=["changed", "gone"])
def test_message_names_the_field_that_replaces_rows(
    source: Path, change: str, messages: Messages
) -> None:
    with messages.raises(BadInput):
        check(source, done(), change, POSSIBLE)


@pytest.mark.parametrize("removes", [True, False])
def test_changed_and_deleted_files_are_found(source: Path, removes: bool) -> None:
    frozen = snapshot_input([str(source)], [])
    (source / "a.txt").write_text("longer than it was")
    (source / "b.txt").unlink()
    now = snapshot_input([str(source)], [])
    rule = ReplacementRule(recomputes=True, removes=removes)
    changes = ResumedInput(frozen, lambda _: (), rule).check(now, None)
    assert (set(changes.changed), changes.removed) == ({0}, {1} if removes else set())
    current = changes.applied(frozen)
    assert current.versions[0] == now.versions[0]
    assert current.versions[2] == frozen.versions[2]
    assert current.removed == changes.removed
    assert not FileChanges.between(current, now).changed


def test_rewritten_file_of_the_same_size_has_changed(source: Path, messages: Messages) -> None:
    with messages.raises(BadInput):
        check(source, done(1), "touch b.txt")


@pytest.mark.parametrize(
    "before",
    [
        done(0, 2),
        Snapshot(OURS, "", [entry([(1, 0, 2)])], {1: 4}),
        Snapshot(OURS, "", [entry([(1, 0, 4)])]),
    ],
    ids=["not begun", "in part", "whose end is not known"],
)
def test_missing_unread_file_is_named(source: Path, before: Snapshot, messages: Messages) -> None:
    with messages.raises(BadInput):
        check(source, before, "remove b.txt")


def test_finished_file_may_be_missing(source: Path) -> None:
    assert check(source, done(1), "remove b.txt") == {1}


def test_new_files_are_found(source: Path) -> None:
    first = snapshot_input([str(source)], [])
    write_lines(source, {"aa.txt": ["new"], "d.txt": ["new"]})
    now = snapshot_input([str(source)], [])
    new = ProcessedFiles([first]).without(now)
    assert [Path(file.path).name for file in new.files()] == ["aa.txt", "d.txt"]
    with pytest.raises(NoNewFiles):
        ProcessedFiles([first, new]).without(now)


def test_known_file_that_has_changed_is_named(source: Path) -> None:
    known = ProcessedFiles([snapshot_input([str(source)], [])])
    (source / "b.txt").write_text("short")
    write_lines(source, {"d.txt": ["new"]})
    with pytest.raises(BadInput, match=r"b\.txt' has changed .*write\.mode to overwrite"):
        known.without(snapshot_input([str(source)], []))


class TestStoredSnapshot:
    """The input snapshot that is stored with the output."""

    @pytest.fixture
    def file(self, source: Path, tmp_path: Path) -> Location:
        location = Location(str(tmp_path / "input.parquet"))
        location.write(snapshot_input([str(source)], []).serialized())
        return location

    def test_frozen_list_is_read_back(self, file: Location, source: Path) -> None:
        stored = read_snapshot(file, FROM_ENVIRONMENT, digest(file.read()))
        assert stored.table == snapshot_input([str(source)], []).table
        assert stored.uris == [str(source / name) for name in LINES]

    def test_limited_list_keeps_its_limit(self, file: Location, source: Path) -> None:
        limited = snapshot_input([str(source)], []).limited([4, 3], 12)
        file.write(limited.serialized())
        stored = read_snapshot(file, FROM_ENVIRONMENT, digest(file.read()))
        assert (stored.files(), stored.rows) == (limited.files(), 7)

    @pytest.mark.parametrize(
        "damage",
        [lambda content: b"", lambda content: content[:-20], lambda content: b"\0" * 99,
         lambda content: content.replace(b"a.txt", b"x.txt"), lambda content: _other_list()],
        ids=["emptied", "cut", "rubbish", "a byte", "another list"],
    )  # fmt: skip
    def test_invalid_content_is_refused(
        self, file: Location, damage: object, messages: Messages
    ) -> None:
        content = file.read()
        file.write(damage(content))  # type: ignore[operator]
        with messages.raises(BadOutput):
            read_snapshot(file, FROM_ENVIRONMENT, digest(content))

    def test_more_files_than_any_input_has_are_refused(self, file: Location) -> None:
        """1 MiB may list 80 million equal files, which would take more than 20 GiB."""
        with pytest.raises(pa.ArrowInvalid):
            InputSnapshot.parse(file.read(), FROM_ENVIRONMENT, max_files=len(LINES) - 1)


def _other_list() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"path": ["/x"], "size": [1], "modified": [1]}), buffer)
    return buffer.getvalue()


class TestResume:
    """A job with some committed rows is prepared again."""

    @pytest.fixture
    def document(self, source: Path, tmp_path: Path) -> Document:
        """Return a job that has committed the first file, and half of the second one."""
        document = job_document("job", source, tmp_path / "out")
        half = good(1, 0, pa.table({"text": LINES["b.txt"][:2]}))
        commit_rows(begin_job(document).job_pass, merged([FIRST_FILE, half]))
        return document

    def test_missing_rows_are_known(self, document: Document) -> None:
        prepared = begin_job(document)
        assert prepared.missing == {1: [(2, None)], 2: [(0, None)]}
        assert (prepared.job_pass.number, prepared.counts().read) == (2, 6)

    def test_rows_of_a_file_that_is_removed_meanwhile_are_processed_in_another_pass(
        self, document: Document, tmp_path: Path
    ) -> None:
        (removed,) = data_files(tmp_path / "out")

        def remove(report: Report) -> None:
            if report.pass_number == 2:
                removed.unlink(missing_ok=True)

        run = run_in_process(document, on_publish=remove)
        assert (run.report.state, run.report.pass_number) == (JobState.SUCCEEDED, 3)
        texts = sorted(row["text"] for row in rows_of(tmp_path / "out"))
        assert texts == [line for lines in LINES.values() for line in lines]

    def test_files_keep_their_numbers_when_others_come(
        self, document: Document, source: Path
    ) -> None:
        write_lines(source, {"0.txt": ["before all others"]})
        prepared = begin_job(document)
        assert prepared.missing == {1: [(2, None)], 2: [(0, None)]}
        (task,) = prepared.input.read_tasks(1, prepared.missing)
        texts = merged(task()).table.column("text").to_pylist()
        assert texts == [*LINES["b.txt"][2:], *LINES["c.txt"]]

    @pytest.mark.parametrize("format_", ["text", "csv", "parquet", "json"])
    def test_missing_finished_file_is_not_needed(self, tmp_path: Path, format_: str) -> None:
        """Not even sampling files for their columns or counting rows needs it."""
        (tmp_path / "in").mkdir()
        for name in "abc":
            path = tmp_path / "in" / f"{name}.{ {'text': 'txt'}.get(format_, format_) }"
            if format_ == "parquet":
                pq.write_table(pa.table({"n": range(5)}), path)
            else:
                path.write_text({"json": '{"n": 1}\n' * 5}.get(format_, "n\n" + "1\n" * 4))
        read = {"format": format_}
        document = job_document("job", tmp_path / "in", tmp_path / "out", read=read)
        commit_rows(begin_job(document).job_pass, merged([good(0, 0, range(5)), end(0, 5)]))
        min((tmp_path / "in").iterdir()).unlink()
        prepared = begin_job(document)
        assert prepared.missing == {1: [(0, None)], 2: [(0, None)]}
        assert prepared.count == RowCount(15, estimated=format_ != "parquet")

    def test_missing_finished_file_in_paths_is_not_needed(
        self, source: Path, tmp_path: Path, document: Document
    ) -> None:
        document["spec"]["read"]["paths"] = [str(source / name) for name in LINES]
        document["spec"]["write"]["path"] = str(tmp_path / "named")
        commit_rows(begin_job(document).job_pass, FIRST_FILE)
        (source / "a.txt").unlink()
        assert begin_job(document).missing == {1: [(0, None)], 2: [(0, None)]}

    def test_limit_applies_to_all_passes_together(
        self, document: Document, source: Path, tmp_path: Path
    ) -> None:
        document["spec"]["read"]["options"] = {"limit": 6}
        document["spec"]["write"]["path"] = str(tmp_path / "limited")
        commit_rows(begin_job(document).job_pass, FIRST_FILE)
        prepared = begin_job(document)
        assert (len(prepared.input), prepared.missing) == (2, {1: [(0, None)]})
        (task,) = prepared.input.read_tasks(1, prepared.missing)
        assert len(merged(task()).ids) == 2


class TestTables:
    """Sources that are not files: they start over unless they can prove that they are unchanged."""

    def begin(self, read: Document, tmp_path: Path) -> PreparedPass:
        return begin_job(
            document(read=read, write={"format": "json", "path": str(tmp_path / "out")})
        )

    def of_lance(self, tmp_path: Path, mode: str = "create", rows_: int = 20) -> Document:
        import lance

        path = tmp_path / "a.lance"
        lance.write_dataset(pa.table({"n": range(rows_)}), path, mode=mode, max_rows_per_file=8)
        return {"format": "lance", "path": str(path)}

    def commit_some(self, prepared: PreparedPass) -> None:
        commit_rows(prepared.job_pass, merged([good(0, 0, range(5)), end(0, 8)]))

    def test_same_lance_version_is_resumed(self, tmp_path: Path) -> None:
        read = self.of_lance(tmp_path)
        self.commit_some(self.begin(read, tmp_path))
        gaps = {0: [(5, 8)], 1: [(0, None)], 2: [(0, None)]}
        assert self.begin(read, tmp_path).missing == gaps

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_other_lance_version_is_read_from_the_start(self, tmp_path: Path, mode: str) -> None:
        self.commit_some(self.begin(self.of_lance(tmp_path), tmp_path))
        prepared = self.begin(self.of_lance(tmp_path, mode), tmp_path)
        assert (prepared.missing, prepared.start.entries) == (None, [])
        assert not list((tmp_path / "out").glob("part-*"))

    def test_recreated_data_set_changes_the_input(self, tmp_path: Path) -> None:
        import shutil

        self.commit_some(self.begin(self.of_lance(tmp_path), tmp_path))
        shutil.rmtree(tmp_path / "a.lance")
        assert self.begin(self.of_lance(tmp_path), tmp_path).missing is None

    def test_other_sources_are_read_from_the_start(self, tmp_path: Path) -> None:
        from support.inputs.table_sources import saved

        read = {"format": "huggingface", "name": str(saved(tmp_path / "set"))}
        read["options"] = {"split": "train"}  # type: ignore[assignment]
        self.commit_some(self.begin(read, tmp_path))
        prepared = self.begin(read, tmp_path)
        assert (prepared.job_pass.number, prepared.missing, prepared.start.entries) == (2, None, [])


def test_message_names_the_first_conflicting_file(source: Path) -> None:
    frozen = snapshot_input([str(source)], [])
    for name in ("b.txt", "c.txt"):
        (source / name).write_text("other")
    with pytest.raises(BadInput) as raised:
        ResumedInput(frozen, lambda _: range(3)).check(snapshot_input([str(source)], []), None)
    assert len(re.findall(r"has changed", raised.value.message)) == 1
