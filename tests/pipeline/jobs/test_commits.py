"""The commit of a task: data, error records, and last the manifest that makes them count."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.arrow import concat, to_column
from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput, JobFailure, UnwritableValue
from batchinference.pipeline.execution import dataset
from batchinference.pipeline.execution.block_codec import decode, encode
from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.dataset import CommitDatasink
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.output.error_records import ERRORS_SCHEMA
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import (
    ERRORS,
    FULL_SHARE,
    MissingRows,
    RowBatch,
    consecutive_ids,
    merged,
)
from batchinference.pipeline.storage.arrow_files import schema_in
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import CHECKSUM_FIELD
from batchinference.spec.progress import Counts
from plugins.messages import Messages
from support.documents.parsed_write import write_of
from support.jobs.on_ray import data_files, write_lines
from support.outputs.batches import end, failed, filtered, good
from support.outputs.builders import begin_pass, close_and_clean, close_pass, committing, layout_of
from support.outputs.rows import rows_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in", {"a.txt": ["x"], "b.txt": ["y"]})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return layout_of(tmp_path / "out")


@pytest.fixture
def job_pass(layout: Layout, source: Path) -> JobPass:
    return begin_pass(layout, source)


@pytest.fixture
def commit(job_pass: JobPass) -> Committer:
    return committing(job_pass)


def missing(done: Snapshot, files: int = 1) -> MissingRows:
    return done.missing_rows(files, None)


MIXED = merged([good(0, 0, [10, 11]), failed(0, 2), filtered(0, 3, 4), end(0, 5), good(1, 7, [17])])


def errors_of(layout: Layout) -> list[dict[str, object]]:
    directory = Path(layout.errors.path)
    return rows_of(directory) if directory.exists() else []


def manifest_files(job_pass: JobPass) -> list[Path]:
    return sorted(Path(job_pass.directory.path).glob("0*.json"))


def manifest_names(job_pass: JobPass) -> list[str]:
    """Return the manifest names without the random part that makes each of them unique."""
    return [file.name.rsplit(".", 2)[0] for file in manifest_files(job_pass)]


def manifest_of(job_pass: JobPass) -> dict[str, Any]:
    """Return the content of the only manifest, without its checksum."""
    (file,) = manifest_files(job_pass)
    content: dict[str, Any] = json.loads(file.read_bytes())
    del content[CHECKSUM_FIELD]
    return content


def test_failed_row_becomes_error_record(commit: Committer, layout: Layout, tmp_path: Path) -> None:
    (row_id,) = consecutive_ids(0, 2, 1).tolist()
    columns = [[row_id], ["embed"], ["ValueError: no"], ["Traceback ..."], ['{"n": 1}']]
    commit.put(
        RowBatch(input_ids=np.array([row_id]), errors=pa.table(columns, schema=ERRORS)), task=3
    )
    assert errors_of(layout) == [
        {
            "id": "0:2",
            "path": str(tmp_path / "in" / "a.txt"),
            "row": 2,
            "step": "embed",
            "error": "ValueError: no",
            "traceback": "Traceback ...",
            "values": '{"n": 1}',
        }
    ]


PIXELS = np.zeros((2, 2, 3), np.uint8)
UNWRITABLE = PIXELS[..., [0] * 7]
"""An image with too many channels."""


def shards() -> Writer:
    return writer_for(write_of("webdataset"))


def pictures(*values: np.ndarray, **columns: list[str]) -> pa.Table:
    return pa.table({"v.png": to_column(list(values)), **columns})


def test_row_that_cannot_be_written_fails_alone(job_pass: JobPass, layout: Layout) -> None:
    batch, writer = good(1, 5, pictures(PIXELS, UNWRITABLE, PIXELS)), shards()
    with pytest.raises(JobFailure, match=r"step 'write' failed on row 6 of .*b\.txt: .*'v"):
        committing(job_pass, writer, tolerant=False).put(batch, 0)
    committing(job_pass, writer).put(batch, 0)
    (entry,) = manifest_of(job_pass)["entries"]
    assert entry["counts"] == {"read": 3, "written": 2, "failed": 1, "filtered": 0, "warned": 0}
    assert [(error["step"], error["row"]) for error in errors_of(layout)] == [("write", 6)]


def test_row_that_cannot_be_written_to_a_partition_fails_alone(
    job_pass: JobPass, layout: Layout
) -> None:
    table = pictures(PIXELS, PIXELS, UNWRITABLE, PIXELS, kind=["b", "a", "b", "a"])
    committing(job_pass, shards(), FileSplit(("v.png",), ("kind",))).put(good(0, 0, table), 0)
    assert [error["row"] for error in errors_of(layout)] == [2]
    assert len(manifest_of(job_pass)["entries"][0]["data"]) == 2


def test_row_whose_partition_value_is_too_long_fails_alone(
    job_pass: JobPass, layout: Layout
) -> None:
    table = pa.table({"n": [0, 1, 2], "kind": ["a", "x" * 300, "b"]})
    committing(job_pass, layout=FileSplit(partition_by=("kind",))).put(good(0, 0, table), 0)
    (error,) = errors_of(layout)
    assert (error["row"], error["step"]) == (1, "write")
    assert "'kind' is too long" in str(error["error"])
    assert len(manifest_of(job_pass)["entries"][0]["data"]) == 2


def test_error_files_have_one_schema(commit: Committer, layout: Layout) -> None:
    commit.put(failed(1, 0), task=0)
    (file,) = data_files(Path(layout.errors.path))
    assert pq.read_schema(file).equals(ERRORS_SCHEMA)


def test_manifest_has_rows_ends_counts_and_files(commit: Committer, layout: Layout) -> None:
    commit.put(replace(MIXED, notes=(("own", '{"batch_size": 8}'),)), task=3, number=2)
    assert manifest_names(commit.job_pass) == ["00000003-0002.6.3.1.2.0"]
    manifest = manifest_of(commit.job_pass)
    (data,), (errors,) = (data_files(Path(path.path)) for path in (layout.output, layout.errors))
    entry = {
        "counts": {"read": 6, "written": 3, "failed": 1, "filtered": 2, "warned": 0},
        "row_ranges": [[0, 0, 5], [1, 7, 8]],
        "shares": [],
        "data": [described(data)],
        "columns": [["n", "int64"]],
        "errors": described(errors),
        "warnings": [],
    }
    first, written = manifest.pop("notes")
    assert first == ["own", '{"batch_size": 8}']
    assert (written[0], json.loads(written[1])["rows"]) == ("write", 3)
    rest = {"ends": [[0, 5]], "schema": ""}
    assert manifest == {"task": 3, "number": 2, "entries": [entry], **rest}


def test_manifest_without_rows_has_the_columns(commit: Committer) -> None:
    rows = good(0, 0, pa.table({"n": [1], "t": ["a"]}))
    commit.put(rows.derived(rows.table.slice(0, 0), np.empty(0, np.int64), []), task=0)
    assert schema_in(manifest_of(commit.job_pass)["schema"]) == rows.table.schema


def described(file: Path) -> dict[str, object]:
    content = file.read_bytes()
    return {"name": file.name, "bytes": len(content), "crc32": zlib.crc32(content)}


def test_manifest_has_the_types_of_the_files(commit: Committer, layout: Layout) -> None:
    halves = pa.table({"half": pa.array(np.array([0.5], np.float16)), "n": [1]})
    commit.put(good(0, 0, halves), task=0)
    ((entry,),) = (manifest.entries for manifest in commit.job_pass.manifests())
    (file,) = entry.data
    schema = pq.read_schema(f"{layout.output.path}/{file.name}")
    assert entry.columns == [(field.name, str(field.type)) for field in schema]
    assert entry.columns[0] == ("half", "float")


class Failing(Writer):
    """A writer that fails after the first file."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        yield from ParquetWriter("snappy").files(table)
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError("no space left"), UnwritableValue("n cannot be encoded, by no row")]
)
def test_failed_write_of_data_leaves_no_files(
    job_pass: JobPass, layout: Layout, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        committing(job_pass, Failing(error)).put(MIXED, task=0)
    assert data_files(Path(layout.output.path)) == errors_of(layout) == []
    assert manifest_names(job_pass) == []


def test_failed_write_of_errors_leaves_no_files(commit: Committer, layout: Layout) -> None:
    Path(layout.errors.path).write_text("where a directory should be")
    with pytest.raises(OSError, match="errors"):
        commit.put(MIXED, task=0)
    assert data_files(Path(layout.output.path)) == []
    assert manifest_names(commit.job_pass) == []


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        (failed(0, 0), "00000000-0000.1.0.1.0.0"),
        (filtered(0, 0, 1), "00000000-0000.2.0.0.2.0"),
        (end(0, 0), "00000000-0000.0.0.0.0.0"),
    ],
    ids=["all failed", "all left out", "an empty file"],
)
def test_task_without_good_rows_commits_no_data_file(
    commit: Committer, layout: Layout, batch: RowBatch, name: str
) -> None:
    commit.put(batch, task=0)
    assert data_files(Path(layout.output.path)) == []
    assert manifest_names(commit.job_pass) == [name]
    assert [entry["data"] for entry in manifest_of(commit.job_pass)["entries"]] in ([], [[]])


def test_commits_of_several_tasks_add_up(commit: Committer, layout: Layout) -> None:
    commit.put(merged([good(0, 0, [10, 11]), end(1, 2)]), task=0)
    commit.put(merged([failed(0, 2), filtered(1, 1), end(0, 3)]), task=1)
    commit.put(good(1, 0, [20]), task=2)
    job_pass = commit.job_pass
    assert job_pass.counts() == Counts(read=5, written=3, failed=1, filtered=1)
    assert sorted(manifest.task for manifest in job_pass.manifests()) == [0, 1, 2]
    assert missing(close_and_clean(job_pass), files=2) == {}
    assert sorted(row["n"] for row in rows_of(Path(layout.output.path))) == [10, 11, 20]


def test_retried_task_counts_once_and_its_first_file_is_removed(
    commit: Committer, layout: Layout
) -> None:
    batch = merged([good(0, 0, [10, 11]), failed(0, 2), end(0, 3)])
    commit.put(batch, task=0)
    commit.put(batch, task=0)
    output = Path(layout.output.path)
    assert len(data_files(output)) == 2

    done = close_and_clean(commit.job_pass)
    assert missing(done) == {}
    assert [row["n"] for row in rows_of(output)] == [10, 11]
    assert len(errors_of(layout)) == 1
    assert commit.job_pass.counts().read == done.counts.read == 3


@pytest.mark.parametrize("number", [1, 2, 3])
def test_output_of_another_run_is_not_touched(
    commit: Committer, layout: Layout, source: Path, number: int, messages: Messages
) -> None:
    commit.put(merged([good(0, 0, [10]), end(0, 1)]), task=0)
    other = begin_pass(layout, source, number)
    committing(other).put(good(0, 0, [77]), task=0)
    with messages.raises(BadOutput):
        close_pass(commit.job_pass)
    assert rows_of(Path(layout.output.path)) == [{"n": 77}]
    assert not commit.job_pass.closed_file.exists()


def test_commit_is_refused_after_another_run_took_over(
    commit: Committer, layout: Layout, source: Path, messages: Messages
) -> None:
    begin_pass(layout, source, 2)
    with messages.raises(BadOutput):
        commit.put(MIXED, task=0)
    assert data_files(Path(layout.output.path)) == errors_of(layout) == []
    assert manifest_names(commit.job_pass) == []


class Slow(Writer):
    """The writer of an abandoned task: while it writes, the driver finishes the output."""

    def __init__(self, job_pass: JobPass) -> None:
        self.job_pass = job_pass

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        close_and_clean(self.job_pass)
        yield from ParquetWriter("snappy").files(table)


@pytest.mark.parametrize("begun", [True, False], ids=["begun before the end", "begun after it"])
def test_late_task_adds_nothing_to_a_finished_output(
    commit: Committer, layout: Layout, begun: bool
) -> None:
    batch = merged([good(0, 0, [10]), failed(0, 1), end(0, 2)])
    commit.put(batch, task=0)
    late = committing(commit.job_pass, Slow(commit.job_pass)) if begun else commit
    if not begun:
        close_and_clean(commit.job_pass)
    before = [manifest_files(commit.job_pass), data_files(Path(layout.errors.path))]
    with pytest.raises(BadOutput, match="is finished"):
        late.put(batch, task=0)
    assert rows_of(Path(layout.output.path)) == [{"n": 10}]
    assert [manifest_files(commit.job_pass), data_files(Path(layout.errors.path))] == before


def test_late_task_also_removes_files_of_a_failed_write(job_pass: JobPass, layout: Layout) -> None:
    commit = committing(job_pass, shards())
    batch = merged([good(0, 0, pictures(PIXELS, UNWRITABLE, PIXELS)), end(0, 3)])
    commit.put(batch, task=0)
    assert len(data_files(Path(layout.output.path))) == 1
    close_and_clean(job_pass)
    before = data_files(Path(layout.output.path))
    with pytest.raises(BadOutput, match="is finished"):
        commit.put(batch, task=0)
    assert data_files(Path(layout.output.path)) == before


def in_blocks(batches: list[RowBatch]) -> RowBatch:
    """Return the batch that a task gets if Ray passes these batches to it."""
    return decode(concat([encode(batch) for batch in batches]))


class TestDividedRows:
    """The parts of a row may be in several tasks, and some of the parts may have failed."""

    HALF = FULL_SHARE // 2

    def half(self, batch: RowBatch) -> RowBatch:
        return replace(batch, shares=np.array([self.HALF]))

    def split(self, job_pass: JobPass) -> list[tuple[object, object, int]]:
        """Return the row ranges, the shares and the number of files of each manifest entry."""
        (manifest,) = job_pass.manifests()
        return [(entry.row_ranges, entry.shares, len(entry.files)) for entry in manifest.entries]

    def test_partial_rows_have_separate_files(self, commit: Committer) -> None:
        commit.put(
            in_blocks(
                [good(0, 0, [10, 11]), self.half(good(0, 2, [12])), self.half(good(0, 3, [13]))]
            ),
            task=0,
        )
        expected = [([(0, 0, 2)], [], 1), ([], [(0, 2, self.HALF), (0, 3, self.HALF)], 1)]
        assert self.split(commit.job_pass) == expected

    def test_incomplete_row_does_not_count_and_is_processed_again(
        self, commit: Committer, layout: Layout
    ) -> None:
        commit.put(in_blocks([good(0, 0, [10]), self.half(good(0, 1, [11])), end(0, 2)]), task=0)
        assert missing(close_and_clean(commit.job_pass)) == {0: [(1, 2)]}
        assert rows_of(Path(layout.output.path)) == [{"n": 10}]

    def test_parts_from_two_tasks_complete_a_row(self, commit: Committer, layout: Layout) -> None:
        commit.put(in_blocks([good(0, 0, [10]), self.half(good(0, 1, [11])), end(0, 2)]), task=0)
        commit.put(self.half(good(0, 1, [111])), task=1)
        done = close_and_clean(commit.job_pass)
        assert (missing(done), done.counts) == ({}, Counts(read=2, written=3))
        assert len(rows_of(Path(layout.output.path))) == 3


def sink_of(committer: Committer) -> CommitDatasink:
    """Return the sink of a job without steps after its pools."""
    errors = ErrorHandling(tolerant=True, input=committer.job_pass.layout.input)
    return CommitDatasink(committer, CommitRules(10), Segment.of([], errors))


class TestSink:
    """What Ray Data passes to the sink, and what the sink asks of it."""

    context = SimpleNamespace(task_idx=5)

    def test_blocks_of_a_task_become_one_file(self, commit: Committer, layout: Layout) -> None:
        blocks = [encode(batch) for batch in (good(0, 0, [1]), failed(0, 1), end(0, 2))]
        sink_of(commit).write(blocks, self.context)
        assert manifest_names(commit.job_pass) == ["00000005-0000.2.1.1.0.0"]
        notes = manifest_of(commit.job_pass)["notes"]
        assert {step for step, _ in notes} == {"write"}
        fields = {name for _, note in notes for name in json.loads(note)}
        assert fields == {"peak_bytes", "rows", "seconds"}
        assert rows_of(Path(layout.output.path)) == [{"n": 1}]

    @pytest.mark.parametrize(
        "blocks",
        [[], [pa.table({})], [encode(good(0, 0, [1])).slice(1)]],
        ids=["none", "no columns", "no rows"],
    )
    def test_task_without_rows_commits_nothing(
        self, commit: Committer, layout: Layout, blocks: list[pa.Table]
    ) -> None:
        sink_of(commit).write(blocks, self.context)
        assert manifest_names(commit.job_pass) == []

    def test_column_that_row_numbers_would_replace_is_found_before_writing(
        self, job_pass: JobPass, messages: Messages
    ) -> None:
        sink = sink_of(committing(job_pass, layout=FileSplit(row_number="n")))
        with messages.raises(JobFailure):
            sink.on_write_start(encode(good(0, 0, [1])).schema)

    def test_retried_task_commits_no_part_of_a_row_twice(
        self, commit: Committer, layout: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first execution died after its first chunk. Another task has the rest of row 1."""
        half = partial(replace, good(0, 1, [11]), shares=np.array([FULL_SHARE // 2]))
        commit.put(merged([good(0, 0, [10]), half()]), task=self.context.task_idx)
        commit.put(half(), task=6)
        monkeypatch.setattr(dataset, "retries_of_this_task", lambda: 1)
        blocks = [encode(one) for one in (good(0, 0, [10]), half(), good(0, 2, [12]), end(0, 3))]
        sink_of(commit).write(blocks, self.context)
        numbers = [(manifest.task, manifest.number) for manifest in commit.job_pass.manifests()]
        assert numbers == [(5, 0), (5, 1), (6, 0)]
        done = close_and_clean(commit.job_pass)
        assert (missing(done), done.counts) == ({}, Counts(read=3, written=4))
        assert len(rows_of(Path(layout.output.path))) == 4


def test_planted_link_of_a_partition_is_not_followed(
    job_pass: JobPass, tmp_path: Path, messages: Messages
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    planted = tmp_path / "out" / "n=1"
    planted.symlink_to(other)
    commit = committing(job_pass, layout=FileSplit(partition_by=("n",)))
    rows_to_put = good(0, 0, pa.table({"text": ["a"], "n": [1]}))
    with messages.raises(BadOutput):
        commit.put(rows_to_put, 0)
    assert list(other.iterdir()) == []
    theirs = other / f"{job_pass.layout.file_prefix(1, 0, 'ab')}.parquet"
    theirs.write_text("not ours")
    job_pass.remove_orphans([])
    assert theirs.exists()


def test_commit_makes_three_control_requests(
    commit: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of the lease, a check that the pass is open, and the manifest."""
    requests: list[str] = []
    for name in ("read", "exists", "write"):
        original = getattr(Location, name)

        def counted(self: Location, *arguments: Any, made: Any = original, kind: str = name) -> Any:
            if "part-" not in self.path:
                requests.append(f"{kind} {self.path.rpartition('/')[2]}")
            return made(self, *arguments)

        monkeypatch.setattr(Location, name, counted)
    commit.put(good(0, 0, [10, 11]), task=0)
    (manifest,) = manifest_files(commit.job_pass)
    assert requests == ["read job.json", "exists closed", f"write {manifest.name}"]
