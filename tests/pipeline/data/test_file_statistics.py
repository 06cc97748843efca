"""The statistics of input files: read once, concurrently, and kept in the input snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.input import RowCount, planning
from batchinference.pipeline.input.changed_files import ResumedInput
from batchinference.pipeline.input.file_input import FileInput, open_files
from batchinference.pipeline.input.input_snapshot import MAX_STARTS, STATS, InputSnapshot
from batchinference.pipeline.input.readers import FileStats
from batchinference.pipeline.input.readers import numpy as numpy_reader
from batchinference.pipeline.input.readers import parquet as parquet_reader
from batchinference.pipeline.row_batch import MissingRows
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import ParquetOptions, ReadFiles, ReadNumpy, ReadParquet
from batchinference.spec.storage import FROM_ENVIRONMENT
from support.inputs.read_files import Outcome

FILES, ROWS, GROUP = 12, 10, 4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write Parquet files of ten rows in groups of four."""
    for number in range(FILES):
        rows = pa.table({"n": range(number * ROWS, (number + 1) * ROWS)})
        pq.write_table(rows, tmp_path / f"{number:02}.parquet", row_group_size=GROUP)
    return tmp_path


@pytest.fixture
def inspected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files whose footers or headers are read before the read tasks."""
    names: list[str] = []
    read_footer, read_header = parquet_reader.parquet_footer, numpy_reader.NumpyReader._headers

    def footer(file: parquet_reader.Location, size: int) -> pq.FileMetaData:
        names.append(Path(file.path).stem)
        return read_footer(file, size)

    def headers(self: object, file: parquet_reader.Location) -> object:
        names.append(Path(file.path).stem)
        return read_header(self, file)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_reader, "parquet_footer", footer)
    monkeypatch.setattr(numpy_reader.NumpyReader, "_headers", headers)
    return names


def parquet(source: Path, limit: int | None = None) -> ReadParquet:
    options = ParquetOptions(limit=limit)
    return ReadParquet(format="parquet", paths=[str(source)], options=options)


def resumed(read: ReadFiles, given: FileInput) -> FileInput:
    """Open the input as another run does that resumes the job."""
    stored = InputSnapshot.parse(given.serialized(), FROM_ENVIRONMENT)
    return open_files(read, earlier=ResumedInput(stored, lambda rows_each: range(FILES)))


def rows_of(given: FileInput, tasks: int, gaps: MissingRows | None = None) -> list[int]:
    batches = [batch for task in given.read_tasks(tasks, gaps) for batch in task()]
    return sorted(row["n"] for row in Outcome(batches).good)


def test_each_footer_is_read_once(source: Path, inspected: list[str]) -> None:
    given = open_files(parquet(source))
    assert given.count() == given.count() == RowCount(FILES * ROWS, estimated=False)
    tasks = given.read_tasks(3 * FILES)
    assert len(tasks) == 3 * FILES, "each row group is a task"
    assert sorted(inspected) == [f"{number:02}" for number in range(FILES)]


def test_file_that_cannot_be_bound_to_its_constants_has_one_row(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> parquet_reader.ParquetReader:
        raise ValueError("no such type")

    monkeypatch.setattr(parquet_reader.ParquetReader, "for_file", refuse)
    assert open_files(parquet(source)).count() == RowCount(FILES, estimated=False)


def test_file_below_a_directory_is_found(source: Path) -> None:
    given = open_files(parquet(source))
    for location in (source, source.parent):
        assert given.path_inside(Location(str(location))) == str(source / "00.parquet")
    assert given.path_inside(Location(f"{source}/0")) is None
    assert given.path_inside(Location("s3://bucket")) is None


def test_footers_are_read_concurrently(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, read_footer = threading.Barrier(4), parquet_reader.parquet_footer

    def footer(file: parquet_reader.Location, size: int) -> pq.FileMetaData:
        together.wait(timeout=60)
        return read_footer(file, size)

    monkeypatch.setattr(parquet_reader, "parquet_footer", footer)
    given = open_files(parquet(source), sampled=4)
    assert given.count() == RowCount(FILES * ROWS, estimated=False)


@pytest.mark.parametrize(
    ("group_rows", "small", "tasks", "cpus", "divisible"),
    [
        (600, False, 1, 2, False),
        (600, False, 1, 1, True),
        (600, True, 60, 2, True),
        (200, False, 3, 2, True),
        (200, False, 3, 8, False),
        (10, False, 60, 96, True),
    ],
    ids=[
        *("one row group", "one CPU", "cheap to read several times"),
        *("few row groups, few CPUs", "few row groups", "enough row groups"),
    ],
)
def test_large_row_groups_are_not_divided(
    tmp_path: Path, *, group_rows: int, small: bool, tasks: int, cpus: int, divisible: bool
) -> None:
    """A job whose row groups would leave CPUs idle runs as operators. Pandas writes up to 1,048,576
    rows in a row group."""
    pq.write_table(pa.table({"n": range(600)}), tmp_path / "a.parquet", row_group_size=group_rows)
    given = open_files(parquet(tmp_path))
    given.reread_bytes = given.reread_bytes if small else 0
    assert rows_of(given, 60) == list(range(600))
    assert len(given.read_tasks(60)) == tasks
    assert given.divisible(cpus) == divisible


def test_resumed_job_reads_no_footer_before_its_read_tasks(
    source: Path, inspected: list[str]
) -> None:
    read = parquet(source)
    given = open_files(read)
    given.count()
    inspected.clear()
    again = resumed(read, given)
    assert again.columns() == ["n"]
    assert again.count({0: ROWS}) == RowCount(FILES * ROWS, estimated=False)
    gaps: MissingRows = {3: [(5, None)], 7: [(0, None)]}
    assert len(again.read_tasks(6, gaps)) > 2, "both files are split"
    assert inspected == []
    assert rows_of(again, 6, gaps) == [*range(35, 40), *range(70, 80)]


def test_resumed_job_has_the_column_types_of_its_first_run(tmp_path: Path) -> None:
    """The types come from the samples of the first run, even if a sampled file is gone."""
    for name, kind in (("a", pa.float64()), ("b", pa.int64())):
        pq.write_table(pa.table({"n": pa.array([1], kind)}), tmp_path / f"{name}.parquet")
    read = parquet(tmp_path)
    given = open_files(read)
    stored = InputSnapshot.parse(given.serialized(), FROM_ENVIRONMENT)
    (tmp_path / "a.parquet").unlink()
    again = open_files(read, earlier=ResumedInput(stored, lambda rows_each: [1]))
    (task,) = again.read_tasks(1, {1: [(0, None)]})
    assert Outcome(list(task())).schema.field("n").type == pa.float64()


def test_input_snapshot_of_an_earlier_version_has_no_statistics(source: Path) -> None:
    read = parquet(source)
    given = open_files(read)
    given.snapshot = InputSnapshot(
        given.snapshot.root, given.snapshot.table.drop_columns(STATS.names)
    )
    again = resumed(read, given)
    assert again.count() == RowCount(FILES * ROWS, estimated=False)


class TestManyFiles:
    """The first read task does not wait for the statistics of very many files."""

    def test_only_a_sample_is_read(self, source: Path, inspected: list[str]) -> None:
        read = parquet(source)
        given = open_files(read, sampled=planning.SAMPLED_FILES)
        given.max_counted = FILES - 1
        assert given.count() == RowCount(FILES * ROWS, estimated=True)
        assert rows_of(given, 4) == list(range(FILES * ROWS))
        sampled = len(inspected)
        assert sampled <= planning.SAMPLED_FILES
        again = resumed(read, given)
        again.max_counted = FILES - 1
        assert again.count({0: ROWS}) == RowCount(FILES * ROWS, estimated=True)
        assert len(inspected) == sampled

    def test_all_are_read_if_they_must_be_split(self, source: Path) -> None:
        snapshot = open_files(parquet(source)).snapshot
        few = planning.counted_files(snapshot, max_files=FILES - 1)
        assert len(few) < len(planning.counted_files(snapshot, FILES - 1, task_bytes=100)) == FILES

    def test_file_without_statistics_is_read_when_it_must_be_split(
        self, source: Path, inspected: list[str]
    ) -> None:
        given = open_files(parquet(source), sampled=1)
        given.max_counted = FILES - 1
        given.count()
        inspected.clear()
        assert len(given.read_tasks(3, {5: [(0, None)]})) == 3
        assert inspected == ["05"]


@pytest.mark.parametrize(("limit", "low", "high"), [(5, 1, 1), (25, 3, 4), (1000, FILES, FILES)])
def test_limit_reads_the_footers_that_it_needs(
    source: Path, inspected: list[str], limit: int, low: int, high: int
) -> None:
    given = open_files(parquet(source, limit), sampled=1)
    assert given.count() == RowCount(min(limit, FILES * ROWS), estimated=False)
    assert low <= len(inspected) <= high
    assert rows_of(given, 30) == list(range(min(limit, FILES * ROWS)))


def test_headers_of_arrays_are_read_once(tmp_path: Path, inspected: list[str]) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.zeros((number, 2)))
    read = ReadNumpy(format="numpy", paths=[str(tmp_path)])
    given = open_files(read)
    assert given.count() == RowCount(3, estimated=False)
    again = resumed(read, given)
    assert (again.count(), again.columns()) == (given.count(), ["data"])
    assert sorted(inspected) == ["0", "1", "2"]


def test_damaged_file_is_one_row(source: Path) -> None:
    (source / "00.parquet").write_bytes(b"nothing")
    read = parquet(source)
    given = open_files(read)
    assert given.count() == RowCount((FILES - 1) * ROWS + 1, estimated=False)
    assert resumed(read, given).count() == given.count()


def test_missing_file_is_an_error_of_storage(source: Path) -> None:
    given = open_files(parquet(source), sampled=1)
    (source / "05.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        given.count()


def test_transient_error_repeats_only_its_file(
    source: Path, inspected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_footer: Callable[..., pq.FileMetaData] = parquet_reader.parquet_footer
    failed: list[str] = []

    def footer(file: parquet_reader.Location, size: int) -> pq.FileMetaData:
        footer = read_footer(file, size)
        if file.path.endswith("03.parquet") and not failed:
            failed.append(file.path)
            raise OSError("AWS Error SLOW_DOWN during GetObject")
        return footer

    monkeypatch.setattr(parquet_reader, "parquet_footer", footer)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert open_files(parquet(source)).count() == RowCount(FILES * ROWS, estimated=False)
    assert sorted(inspected) == sorted([*(f"{number:02}" for number in range(FILES)), "03"])


def test_stored_starts_are_limited(source: Path) -> None:
    frozen = open_files(parquet(source)).snapshot
    starts = list(range(2 * MAX_STARTS // FILES))
    stats = frozen.with_stats({0: FileStats(len(starts), starts)}).stats
    assert stats == {0: FileStats(len(starts), starts[::2])}
    assert planning.parts_of(frozen.files()[:1], stats, 5)[1].start % 2 == 0


@pytest.mark.parametrize("changed", [1, FILES])
def test_statistics_of_changed_files_are_dropped(source: Path, changed: int) -> None:
    snapshot = open_files(parquet(source)).snapshot
    now = snapshot.with_versions(dict.fromkeys(range(changed), (1, 1)))
    assert list(now.stats) == list(range(changed, FILES))


def test_only_the_types_of_wanted_columns_are_stored(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    options = ParquetOptions(columns=["a"])
    given = open_files(ReadParquet(format="parquet", paths=[str(tmp_path)], options=options))
    assert given.snapshot.stats[0].schema == pa.schema({"a": pa.int64(), "b": pa.null()})
