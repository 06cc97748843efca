"""How a job is split into tasks, blocks and files."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.execution.task_sizing import (
    LARGE_TASK_ROWS,
    number_of_tasks,
    small_commit_seconds,
)
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.file_input import open_files
from batchinference.pipeline.input.input_snapshot import InputFile, InputSnapshot
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.input.planning import (
    FILE_BYTES,
    FILE_ROWS,
    MAX_TASKS,
    MIN_BLOCK_ROWS,
    MIN_COMMITS,
    MIN_FILES,
    MIN_TASKS,
    SAMPLED_FILES,
    SMALL_FILE_ROWS,
    TASK_BYTES,
    Sizing,
    count_rows,
    sample,
    sizing_of,
)
from batchinference.pipeline.input.readers.kinds import reader_for
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import (
    ImageOptions,
    ManifestOptions,
    Read,
    ReadAudio,
    ReadFiles,
    ReadImages,
    ReadManifest,
    ReadParquet,
    ReadText,
    ReadVideo,
    ReadWebdataset,
    VideoOptions,
)
from support.jobs.on_ray import write_lines
from support.tiers import examples

TEXT = ReadText(format="text", paths=["in"])
IMAGES = ReadImages(format="images", paths=["in"])
FILES = st.integers(1, 20_000)
FILE_SIZES = st.integers(0, 1 << 34)
ROWS = st.none() | st.builds(RowCount, st.integers(0, 10**10), st.booleans())


def frozen(files: int, size: int) -> InputSnapshot:
    sizes = pa.array([size] * files, pa.int64())
    paths = pa.array([f"/in/{number}" for number in range(files)])
    return InputSnapshot(Location("/in"), pa.table({"path": paths, "size": sizes}))


def cut(files: int, size: int, count: RowCount | None, read: Read = TEXT) -> Sizing:
    return sizing_of(frozen(files, size), read, count, merged=True)


@given(FILES, FILE_SIZES, ROWS, st.sampled_from([TEXT, IMAGES]))
@settings(max_examples=examples(150))
def test_cut_respects_its_limits(files: int, size: int, count: RowCount | None, read: Read) -> None:
    cut_ = cut(files, size, count, read)
    assert 1 <= cut_.read_tasks <= min(files, MAX_TASKS)
    assert cut_.blocks >= cut_.read_tasks
    assert cut_.blocks % cut_.read_tasks == 0
    assert 1 <= cut_.rows_per_file <= FILE_ROWS


@given(FILES, FILE_SIZES, st.integers(1, 10**10), st.sampled_from([TEXT, IMAGES]))
@settings(max_examples=examples(150))
def test_job_commits_often_enough_to_show_progress(
    files: int, size: int, rows: int, read: Read
) -> None:
    cut_ = cut(files, size, RowCount(rows, estimated=False), read)
    assert rows // cut_.rows_per_file >= min(rows, MIN_COMMITS)


@given(FILES, FILE_SIZES, st.integers(0, 10**10))
@settings(max_examples=examples(100))
def test_output_file_fits_into_memory(files: int, size: int, rows: int) -> None:
    cut_ = cut(files, size, RowCount(rows, estimated=False))
    assert cut_.rows_per_file == 1 or (
        cut_.rows_per_file * TEXT.row_bytes(files * size, rows) <= FILE_BYTES
    )


@given(FILES, FILE_SIZES)
@settings(max_examples=examples(100))
def test_task_reads_no_more_than_its_share(files: int, size: int) -> None:
    """Unless each task reads one file, as files are never split, or the task limit is reached."""
    tasks = cut(files, size, None).read_tasks
    assert files * size <= tasks * TASK_BYTES or tasks in (files, MAX_TASKS)


@pytest.mark.parametrize(
    ("files", "size", "rows", "expected"),
    [
        (1, 0, 0, Sizing(1, 1, 1)),
        (1, 1000, 10, Sizing(1, 1, 1)),
        (1, 100_000, 10 * MIN_BLOCK_ROWS, Sizing(1, 10, 5)),
        (3, 1000, 150, Sizing(3, 9, 4)),
        (300, 1000, 300, Sizing(MIN_TASKS, MIN_TASKS, 9)),
        (1, 1 << 30, 10**7, Sizing(1, 64, FILE_ROWS)),
        (20_000, 1 << 30, 10**9, Sizing(MAX_TASKS, MAX_TASKS, 781)),
    ],
)
def test_input_is_cut_into_tasks_and_files(
    files: int, size: int, rows: int, expected: Sizing
) -> None:
    assert cut(files, size, RowCount(rows, estimated=False)) == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [(401, 401 // MIN_FILES), (2000, SMALL_FILE_ROWS), (8000, 250)]
)
def test_number_of_small_unmerged_files_is_limited(rows: int, expected: int) -> None:
    few = sizing_of(frozen(1, 10_000), TEXT, RowCount(rows, estimated=False), merged=False)
    assert few.rows_per_file == expected


@pytest.mark.parametrize(
    ("cpus", "parts", "rows", "large", "merged", "expected"),
    [
        (2, None, 20_000, False, True, 64),
        (96, None, 20_000, False, True, 384),
        (96, 100, 20_000, False, True, 100),
        (96, 10, 20_000, False, True, 64),
        (96, None, 2000, False, True, 125),
        (96, None, 20_000, True, True, 288),
        (2, None, 20_000, True, True, 10),
        (96, None, 20_000, True, False, 200),
        (96, None, 20_000, False, False, 200),
        (10_000, None, 10**9, False, True, MAX_TASKS),
    ],
)
def test_tasks_follow_the_cpus_if_each_has_enough_rows(
    cpus: int, parts: int | None, rows: int, large: bool, merged: bool, expected: int
) -> None:
    large_rows = LARGE_TASK_ROWS if large else None
    tasks = number_of_tasks(64, rows, cpus, parts, merged=merged, large_rows=large_rows)
    assert tasks == expected


def test_files_that_are_not_merged_wait_longer_for_enough_rows() -> None:
    assert small_commit_seconds(merged=False) > small_commit_seconds(merged=True)


def test_large_rows_make_short_files() -> None:
    large = ReadImages(format="images", paths=["in"], options=ImageOptions(size=[4096, 4096]))
    assert cut(100_000, 1 << 20, RowCount(100_000, estimated=False), large).rows_per_file == 1
    small = ReadImages(format="images", paths=["in"], options=ImageOptions(size=[224, 224]))
    count = RowCount(100_000, estimated=False)
    assert cut(100_000, 1 << 20, count, small).rows_per_file == FILE_BYTES // (224 * 224 * 3)


@pytest.mark.parametrize(
    ("files", "rows", "tasks"),
    [(1, 10, 1), (1, 10_000, 40), (1, 10**7, MIN_TASKS), (3, 100, 3), (100, 10**6, MIN_TASKS)],
)
def test_manifest_is_cut_by_its_rows(files: int, rows: int, tasks: int) -> None:
    manifest = ReadManifest(format="manifest", paths=["in"])
    count = RowCount(rows, estimated=False)
    assert cut(files, 1000, count, manifest).read_tasks == tasks


@pytest.mark.parametrize(
    ("files", "size", "rows", "tasks"),
    [
        (1, 1000, 10, 1),
        (1, 10**6, 10_000, 10),
        (1, 1 << 30, 10**7, MIN_TASKS),
        (1, 1 << 34, 10**7, 256),
        (300, 1000, 300, MIN_TASKS),
    ],
)
def test_parquet_is_cut_within_files(files: int, size: int, rows: int, tasks: int) -> None:
    parquet = ReadParquet(format="parquet", paths=["in"])
    assert cut(files, size, RowCount(rows, estimated=False), parquet).read_tasks == tasks


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (ReadVideo(format="video", paths=["in"]), 720 * 1280 * 3),
        (ReadVideo(format="video", paths=["in"], options=VideoOptions(size=[8, 9])), 8 * 9 * 3),
        (
            ReadManifest(
                format="manifest",
                paths=["in"],
                options=ManifestOptions(decode="image", size=[8, 9], mode="L"),
            ),
            8 * 9,
        ),
        (ReadManifest(format="manifest", paths=["in"]), 1 << 18),
        (ReadAudio(format="audio", paths=["in"]), 10 * 500),
        (ReadWebdataset(format="webdataset", paths=["in"]), 10 * 500),
        (TEXT, 4 * 500),
    ],
)
def test_estimated_bytes_of_a_row(read: Read, expected: int) -> None:
    assert read.row_bytes(100_000, 200) == expected


@given(st.integers(1, 5000), st.integers(1, 20))
def test_sample_is_even_and_limited(files: int, limit: int) -> None:
    listed = [InputFile(number, str(number), 1) for number in range(files)]
    chosen = [file.number for file in sample(listed, limit)]
    assert 1 <= len(chosen) <= limit
    assert chosen[0] == 0
    steps = {after - before for before, after in pairwise(chosen)}
    assert len(steps) <= 1


class TestRowCounting:
    """Counting the rows of an input before it is read."""

    def count(
        self, directory: Path, read: Read, ends: Mapping[int, int] = MappingProxyType({})
    ) -> RowCount | None:
        assert isinstance(read, ReadFiles)
        return open_files(read.model_copy(update={"paths": [str(directory)]})).count(ends)

    def test_files_with_known_rows_are_not_read(self, tmp_path: Path) -> None:
        write_lines(tmp_path, {f"{n}.txt": ["same length"] * 10 for n in range(3)})
        listed = snapshot_input([str(tmp_path)], ["txt"])
        (tmp_path / "1.txt").unlink()
        count = count_rows(listed, reader_for(TEXT), {1: 7})
        assert count == RowCount(27, estimated=True)

    def test_many_files_are_sampled(self, tmp_path: Path) -> None:
        write_lines(tmp_path, {f"{n:03}.txt": ["same length"] * 5 for n in range(100)})
        assert self.count(tmp_path, TEXT) == RowCount(500, estimated=True)
        chosen = sample(snapshot_input([str(tmp_path)], ["txt"]).files())
        assert len(chosen) <= SAMPLED_FILES
