"""A task's commit: its data, its errors, and last the manifest that makes them count."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline import rows
from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.blocks import concat
from batchinference.pipeline.failures import BadOutput, Incomplete
from batchinference.pipeline.inputs import freeze_input
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.manifest import Counts
from batchinference.pipeline.sink import ERRORS_SCHEMA, Commit, CommitSink
from batchinference.pipeline.storage import Address
from batchinference.pipeline.writers.cut import Cut
from batchinference.pipeline.writers.parquet import ParquetWriter
from support.job_runs import data_files, write_lines
from support.outputs import rows_of

KEY = "0123456789abcdef"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An output whose input has two files."""
    source = write_lines(tmp_path / "in", {"a.txt": ["x"], "b.txt": ["y"]})
    output = Address(str(tmp_path / "out"))
    state = output / "_batchinference"
    layout = Layout(KEY, output, state, state / "errors")
    layout.input.write(freeze_input([str(source)], []).serialized())
    return layout


@pytest.fixture
def attempt(layout: Layout) -> Attempt:
    return Attempt.open(layout, 1)


@pytest.fixture
def commit(attempt: Attempt) -> Commit:
    return Commit(attempt, ParquetWriter("snappy"), Cut())


def good(file: int, first: int, *values: int) -> pa.Table:
    return rows.with_ids(pa.table({"value": list(values)}), file, first)


def failed(file: int, row: int, step: str = "embed") -> pa.Table:
    return rows.failed_row(rows.pack(file, row), step, ValueError("no"), "Traceback ...")


def skipped(file: int, *row_numbers: int) -> pa.Table:
    return rows.skipped_rows(np.array([rows.pack(file, row) for row in row_numbers]))


MIXED = concat([
    good(0, 0, 10, 11),
    failed(0, 2),
    skipped(0, 3, 4),
    rows.end_of_file(0, 5),
    good(1, 7, 17),
])  # fmt: skip


def errors_of(layout: Layout) -> list[dict[str, object]]:
    directory = Path(layout.errors.path)
    return rows_of(directory) if directory.exists() else []


def manifest_of(layout: Layout, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((layout.manifests(1) / name).read())
    return content


def manifest_names(layout: Layout) -> list[str]:
    names = (Path(info.path).name for info in layout.manifests(1).files())
    return sorted(name for name in names if name.endswith(".json"))


def test_good_rows_become_a_data_file_with_the_columns_of_the_user_alone(commit: Commit) -> None:
    commit.put(MIXED, task=3)
    (file,) = data_files(Path(commit.attempt.layout.output.path))
    assert pq.read_table(file).to_pydict() == {"value": [10, 11, 17]}


def test_a_failed_row_becomes_an_error_with_its_id_path_step_and_words(
    commit: Commit, layout: Layout, tmp_path: Path
) -> None:
    commit.put(MIXED, task=3)
    assert errors_of(layout) == [
        {
            "id": "0:2",
            "path": str(tmp_path / "in" / "a.txt"),
            "row": 2,
            "step": "embed",
            "error": "ValueError: no",
            "traceback": "Traceback ...",
        }
    ]


def test_an_error_file_has_the_same_schema_whatever_failed(commit: Commit, layout: Layout) -> None:
    commit.put(rows.failed_row(rows.pack(1, 0), "read", ValueError("x")), task=0)
    (file,) = data_files(Path(layout.errors.path))
    assert pq.read_schema(file).equals(ERRORS_SCHEMA)


def test_the_manifest_tells_rows_ends_counts_and_files(commit: Commit, layout: Layout) -> None:
    commit.put(MIXED, task=3)
    assert manifest_names(layout) == ["00000003.6.3.1.2.json"]
    manifest = manifest_of(layout, "00000003.6.3.1.2.json")
    (data,), (errors,) = (data_files(Path(place.path)) for place in (layout.output, layout.errors))
    assert manifest == {
        "attempt": 1,
        "task": 3,
        "counts": {"read": 6, "written": 3, "failed": 1, "skipped": 2},
        "ranges": [[0, 0, 5], [1, 7, 8]],
        "shares": [],
        "ends": [[0, 5]],
        "data": [{"name": data.name, "bytes": data.stat().st_size}],
        "columns": [["value", "int64"]],
        "errors": {"name": errors.name, "bytes": errors.stat().st_size},
        "notes": manifest["notes"],
    }
    ((step, note),) = manifest["notes"]
    assert step == "write"
    assert json.loads(note)["peak_bytes"] > 1 << 20


def test_data_is_put_first_then_errors_and_last_the_manifest(
    commit: Commit, layout: Layout
) -> None:
    commit.put(MIXED, task=3)
    (data,) = data_files(Path(layout.output.path))
    (errors,) = data_files(Path(layout.errors.path))
    manifest = Path(layout.manifests(1).path) / "00000003.6.3.1.2.json"
    written = [file.stat().st_mtime_ns for file in (data, errors, manifest)]
    assert written == sorted(written)


class FullDisk:
    """A writer that cannot write."""

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        raise OSError("no space left")


def test_data_that_cannot_be_put_leaves_nothing(layout: Layout) -> None:
    with pytest.raises(OSError, match="no space left"):
        Commit(Attempt.open(layout, 1), FullDisk(), Cut()).put(MIXED, task=0)
    assert data_files(Path(layout.output.path)) == errors_of(layout) == []
    assert manifest_names(layout) == []


def test_errors_that_cannot_be_put_leave_no_manifest(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a directory should be")
    blocked = Layout(KEY, layout.output, layout.state, Address(str(tmp_path / "file")))
    with pytest.raises(OSError, match="file"):
        Commit(Attempt.open(blocked, 1), ParquetWriter("snappy"), Cut()).put(MIXED, task=0)
    assert len(data_files(Path(layout.output.path))) == 1
    assert manifest_names(layout) == []


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (failed(0, 0), "00000000.1.0.1.0.json"),
        (skipped(0, 0, 1), "00000000.2.0.0.2.json"),
        (rows.end_of_file(0, 0), "00000000.0.0.0.0.json"),
    ],
    ids=["all failed", "all left out", "an empty file"],
)
def test_a_task_without_good_rows_commits_no_data_file(
    commit: Commit, layout: Layout, table: pa.Table, name: str
) -> None:
    commit.put(table, task=0)
    assert data_files(Path(layout.output.path)) == []
    assert manifest_names(layout) == [name]
    assert manifest_of(layout, name)["data"] == []


def test_a_task_without_failed_rows_commits_no_error_file(commit: Commit, layout: Layout) -> None:
    commit.put(good(0, 0, 1, 2), task=0)
    assert errors_of(layout) == []
    assert manifest_of(layout, "00000000.2.2.0.0.json")["errors"] is None


def test_rows_may_come_in_any_order(commit: Commit, layout: Layout) -> None:
    table = concat([good(0, 0, *range(9)), good(1, 0, *range(9))])
    shuffled = table.take(np.random.default_rng(7).permutation(table.num_rows))
    commit.put(shuffled, task=0)
    assert manifest_of(layout, "00000000.18.18.0.0.json")["ranges"] == [[0, 0, 9], [1, 0, 9]]


def test_commits_of_several_tasks_add_up(commit: Commit, layout: Layout) -> None:
    commit.put(concat([good(0, 0, 10, 11), rows.end_of_file(1, 2)]), task=0)
    commit.put(concat([failed(0, 2), skipped(1, 1), rows.end_of_file(0, 3)]), task=1)
    commit.put(good(1, 0, 20), task=2)
    attempt = commit.attempt
    assert attempt.counts() == Counts(read=5, written=3, failed=1, skipped=1)
    assert sorted(manifest.task for manifest in attempt.manifests()) == [0, 1, 2]
    attempt.check_and_clean(files=2)
    assert sorted(row["value"] for row in rows_of(Path(layout.output.path))) == [10, 11, 20]


def test_a_retried_task_counts_once_and_its_first_file_is_removed(
    commit: Commit, layout: Layout
) -> None:
    table = concat([good(0, 0, 10, 11), failed(0, 2), rows.end_of_file(0, 3)])
    commit.put(table, task=0)
    commit.put(table, task=0)
    output = Path(layout.output.path)
    assert len(data_files(output)) == 2

    attempt = commit.attempt
    attempt.check_and_clean(files=1)
    assert [row["value"] for row in rows_of(output)] == [10, 11]
    assert len(errors_of(layout)) == 1
    assert attempt.counts().read == 3


def test_a_file_that_was_put_without_a_commit_is_removed(commit: Commit, layout: Layout) -> None:
    commit.put(concat([good(0, 0, 10), rows.end_of_file(0, 1)]), task=0)
    for place in (layout.output, layout.errors):
        (place / (layout.part_name(1, 9, "deadbeef") + ".parquet")).write(b"half a task")
    commit.attempt.check_and_clean(files=1)
    assert rows_of(Path(layout.output.path)) == [{"value": 10}]
    assert errors_of(layout) == []


def test_a_task_that_is_tried_again_with_other_counts_counts_once(
    commit: Commit, layout: Layout
) -> None:
    end = rows.end_of_file(0, 2)
    commit.put(concat([good(0, 0, 10, 11), end]), task=0)
    commit.put(concat([good(0, 0, 10), failed(0, 1), end]), task=0)
    attempt = commit.attempt
    attempt.check_and_clean(files=1)
    counts = attempt.counts()
    assert counts.read == 2
    assert counts.written == len(rows_of(Path(layout.output.path)))
    assert counts.failed == len(errors_of(layout))


@pytest.mark.parametrize("place", ["output", "errors"])
@pytest.mark.parametrize("damage", [Path.unlink, Path.write_bytes], ids=["gone", "cut"])
def test_a_committed_file_that_is_not_as_it_was_is_named(
    commit: Commit, layout: Layout, place: str, damage: Callable[..., object]
) -> None:
    commit.put(concat([good(0, 0, 10), failed(0, 1), rows.end_of_file(0, 2)]), task=0)
    (file,) = data_files(Path(getattr(layout, place).path))
    damage(file, *([b"PAR1"] if damage is Path.write_bytes else []))
    with pytest.raises(Incomplete, match=f"{file.name}' is gone, or not as it was written"):
        commit.attempt.check_and_clean(files=1)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_output_that_another_run_has_taken_over_is_left_alone(
    commit: Commit, layout: Layout, number: int
) -> None:
    commit.put(concat([good(0, 0, 10), rows.end_of_file(0, 1)]), task=0)
    theirs = layout.output / (layout.part_name(2, 0, "deadbeef") + ".parquet")
    theirs.write(b"theirs")
    Attempt.open(layout, number)
    with pytest.raises(BadOutput, match="another run has taken over"):
        commit.attempt.check_and_clean(files=1)
    assert theirs.exists()


def test_nothing_is_put_once_another_run_has_taken_over(commit: Commit, layout: Layout) -> None:
    Attempt.open(layout, 2)
    with pytest.raises(BadOutput, match="another run has taken over"):
        commit.put(MIXED, task=0)
    assert data_files(Path(layout.output.path)) == errors_of(layout) == []
    assert manifest_names(layout) == []


class Slow:
    """A writer of a task for which nobody waits: while it writes, the output is finished."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        self.attempt.check_and_clean(files=1)
        yield from ParquetWriter("snappy").files(table)


@pytest.mark.parametrize("begun", [True, False], ids=["begun before the end", "begun after it"])
def test_a_task_that_is_late_adds_nothing_to_a_finished_output(
    commit: Commit, layout: Layout, begun: bool
) -> None:
    table = concat([good(0, 0, 10), failed(0, 1), rows.end_of_file(0, 2)])
    commit.put(table, task=0)
    late = replace(commit, writer=Slow(commit.attempt)) if begun else commit
    if not begun:
        commit.attempt.check_and_clean(files=1)
    before = [manifest_names(layout), data_files(Path(layout.errors.path))]
    with pytest.raises(BadOutput, match="is finished"):
        late.put(table, task=0)
    assert rows_of(Path(layout.output.path)) == [{"value": 10}]
    assert [manifest_names(layout), data_files(Path(layout.errors.path))] == before


def test_an_output_that_was_closed_can_be_tried_again(commit: Commit, layout: Layout) -> None:
    with pytest.raises(Incomplete):
        commit.attempt.check_and_clean(files=1)
    again = replace(commit, attempt=Attempt.open(layout, 2))
    again.put(concat([good(0, 0, 10), rows.end_of_file(0, 1)]), task=0)
    assert again.attempt.check_and_clean(files=1)


def test_files_of_others_are_kept(commit: Commit, layout: Layout) -> None:
    commit.put(concat([good(0, 0, 10), rows.end_of_file(0, 1)]), task=0)
    others = [
        layout.output / "notes.txt",
        layout.output / "part-of-something.jsonl",
        layout.errors / "part-ffffffff-0001-00000000-deadbeef.parquet",
    ]
    for other in others:
        other.write(b"theirs")
    commit.attempt.check_and_clean(files=1)
    assert [other.read() for other in others] == [b"theirs"] * 3


def test_nothing_is_removed_when_rows_are_missing(commit: Commit, layout: Layout) -> None:
    commit.put(concat([good(0, 0, 10), rows.end_of_file(0, 2)]), task=0)
    orphan = layout.output / (layout.part_name(1, 9, "deadbeef") + ".parquet")
    orphan.write(b"perhaps the missing row")
    with pytest.raises(Incomplete, match="file 0 has 2 rows and 1 were written"):
        commit.attempt.check_and_clean(files=1)
    assert orphan.exists()


def test_data_and_errors_may_share_a_directory(layout: Layout) -> None:
    """It is refused at the beginning; were it not, no row would be lost."""
    shared = Layout(KEY, layout.output, layout.state, layout.output)
    commit = Commit(Attempt.open(shared, 1), ParquetWriter("snappy"), Cut())
    commit.put(concat([good(0, 0, 10), failed(0, 1), rows.end_of_file(0, 2)]), task=0)
    commit.attempt.check_and_clean(files=1)
    assert len(data_files(Path(layout.output.path))) == 2


class TestSink:
    """What Ray Data hands over, and what it is asked for."""

    context = SimpleNamespace(task_idx=5)

    def test_blocks_of_a_task_become_one_file(self, commit: Commit, layout: Layout) -> None:
        blocks = [good(0, 0, 1), failed(0, 1), rows.end_of_file(0, 2)]
        CommitSink(commit, 10).write(blocks, self.context)
        assert manifest_names(layout) == ["00000005.2.1.1.0.json"]
        assert rows_of(Path(layout.output.path)) == [{"value": 1}]

    @pytest.mark.parametrize(
        "blocks", [[], [pa.table({})], [good(0, 0)]], ids=["none", "no columns", "no rows"]
    )
    def test_a_task_without_rows_commits_nothing(
        self, commit: Commit, layout: Layout, blocks: list[pa.Table]
    ) -> None:
        CommitSink(commit, 10).write(blocks, self.context)
        assert manifest_names(layout) == []

    def test_types_of_blocks_are_widened(self, commit: Commit, layout: Layout) -> None:
        real = rows.with_ids(pa.table({"value": [0.5]}), 0, 1)
        CommitSink(commit, 10).write([good(0, 0, 1), real], self.context)
        assert [row["value"] for row in rows_of(Path(layout.output.path))] == [1.0, 0.5]

    def test_ray_is_told_how_many_rows_a_file_should_have(self, commit: Commit) -> None:
        assert CommitSink(commit, 42).min_rows_per_write == 42
