"""Finished files are rewritten under new names: one schema for all, and no small files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from unittest.mock import Mock

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.retry_failed_rows import without_failed_rows
from batchinference.pipeline.commit.row_coverage import RowSet
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.file_rewrites import (
    MERGED_BYTES,
    MERGED_ROWS,
    SMALL_BYTES,
    OutputSchema,
    RewriteTask,
    fit_in_driver,
    rewrites,
)
from batchinference.pipeline.output.writers import RewritingWriter
from batchinference.pipeline.output.writers.kinds import rewriting_writer_for, writer_for
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import FULL_SHARE, NO_IDS, RowBatch, merged
from batchinference.pipeline.storage.location import Location
from batchinference.spec.progress import Counts
from support.documents.parsed_write import write_of
from support.jobs.on_ray import data_files, write_lines
from support.jobs.without_ray import run_without_ray, small_job, write_input
from support.outputs.batches import failed, good
from support.outputs.builders import (
    OURS,
    begin_pass,
    close_pass,
    commit_rows,
    committing,
    last_pass,
    layout_of,
)
from support.outputs.rows import Row

PARQUET = ParquetWriter("snappy")


def names(output: Path) -> set[str]:
    return {file.name for file in data_files(output)}


@pytest.fixture
def job_pass(tmp_path: Path) -> JobPass:
    """Return a closed pass with two files, of which one has only nulls in a column."""
    source = write_lines(tmp_path / "in", {"a.txt": ["x", "y"]})
    job_pass = begin_pass(layout_of(tmp_path / "out"), source)
    for row, value in enumerate([None, 1.5]):
        table = pa.table({"half": pa.array([value])})
        commit_rows(job_pass, good(0, row, table), task=row)
    return job_pass


def rewriting(job_pass: JobPass) -> tuple[Snapshot, RewriteTask]:
    end = close_pass(job_pass)
    ((task,), _) = rewrites(job_pass, end.entries, PARQUET)
    return end, task


@pytest.mark.parametrize(
    ("rows", "size"), [(MERGED_ROWS, 1), (1, MERGED_BYTES)], ids=["rows", "bytes"]
)
def test_driver_reads_only_small_files(job_pass: JobPass, rows: int, size: int) -> None:
    _, task = rewriting(job_pass)
    assert fit_in_driver([task, task])
    largest = replace(of_size(task.entries[0], size), counts=Counts(read=rows, written=rows))
    assert fit_in_driver([replace(task, entries=[largest])])
    assert not fit_in_driver([task, replace(task, entries=[largest])])


def of_size(entry: ManifestEntry, size: int) -> ManifestEntry:
    """Return an entry whose only file claims another size in bytes."""
    return replace(entry, data=[replace(entry.data[0], bytes=size)])


def rewritten(
    job_pass: JobPass, end: Snapshot, writer: RewritingWriter = PARQUET, first: int | None = 0
) -> list[ManifestEntry]:
    """Rewrite the files of a snapshot, and return its new entries. The files of the entries from
    `first` on may be merged; none of them if it is None."""
    small = [] if first is None else end.entries[first:]
    mergeable = {file.name for entry in small for file in entry.data}
    tasks, others = rewrites(job_pass, end.entries, writer, mergeable)
    entries = [*others, *(entry for task in tasks for entry in task())]
    assert rewrites(job_pass, entries, writer) == ([], entries)
    return entries


def table(*values: object, name: str = "n") -> pa.Table:
    return pa.table({name: pa.array(values)})


class TestMerging:
    """Small files of entries with the same columns become one file."""

    @pytest.fixture
    def job_pass(self, tmp_path: Path) -> JobPass:
        source = write_lines(tmp_path / "in", {"a.txt": ["x"] * 9})
        return begin_pass(layout_of(tmp_path / "out"), source)

    writer: RewritingWriter = PARQUET

    def merged(
        self, job_pass: JobPass, *batches: RowBatch, earlier: int = 0, first: int = 0
    ) -> list[ManifestEntry]:
        for task, batch in enumerate(batches, first):
            commit_rows(job_pass, batch, task)
        end = close_pass(job_pass)
        entries = rewritten(job_pass, end, self.writer, earlier)
        job_pass.write_unified_snapshot(end.with_entries(entries))
        job_pass.remove_orphans(entries)
        assert job_pass.load_committed().counts == end.counts
        assert RowSet.of(entries).missing(1, {0: 9}) == RowSet.of(end.entries).missing(1, {0: 9})
        return entries

    def rows(self, job_pass: JobPass) -> list[list[Row]]:
        files = data_files(Path(job_pass.layout.output.path))
        return sorted((pq.read_table(file).to_pylist() for file in files), key=str)

    def test_rows_are_in_the_order_of_the_input(self, job_pass: JobPass) -> None:
        self.merged(job_pass, good(0, 3, [3, 4]), good(0, 0, [0]), good(0, 1, [1, 2]))
        assert self.rows(job_pass) == [[{"n": n} for n in range(5)]]

    def test_error_records_are_merged(self, job_pass: JobPass) -> None:
        batches = [merged([good(0, 2 * n, [n]), failed(0, 2 * n + 1)]) for n in range(3)]
        (entry,) = self.merged(job_pass, *batches)
        assert entry.errors is not None
        records = pq.read_table((job_pass.layout.errors / entry.errors.name).path).to_pylist()
        assert [record["row"] for record in records] == [1, 3, 5]
        assert len(data_files(Path(job_pass.layout.errors.path))) == 1

    def test_values_that_fit_no_common_type_keep_their_file(self, job_pass: JobPass) -> None:
        large, small = {"n": (1 << 53) + 1, "d": Decimal("99.99")}, {"n": 0.5, "d": 0.5}
        tables = (pa.Table.from_pylist([row]) for row in (large, small))
        self.merged(job_pass, *(good(0, row, each) for row, each in enumerate(tables)))
        assert self.rows(job_pass) == [[small], [large | {"d": 99.99}]]

    def test_types_without_a_common_type_are_not_merged(self, job_pass: JobPass) -> None:
        batches = [good(0, 0, table(1)), good(0, 1, table("a")), good(0, 2, table(2))]
        files = [pq.read_table(file.path).to_pylist() for file in self.files(job_pass, *batches)]
        assert sorted(map(str, files)) == ["[{'n': 'a'}]", "[{'n': 1}, {'n': 2}]"]

    def files(self, job_pass: JobPass, *batches: RowBatch) -> list[Location]:
        entries = self.merged(job_pass, *batches)
        return [job_pass.layout.data / file.name for entry in entries for file in entry.data]

    def test_parts_of_a_row_are_not_merged(self, job_pass: JobPass) -> None:
        half = replace(good(0, 0, [0]), shares=np.array([FULL_SHARE // 2]))
        self.merged(job_pass, half, half, good(0, 1, [1]), good(0, 2, [2]))
        assert self.rows(job_pass) == [[{"n": 0}], [{"n": 0}], [{"n": 1}, {"n": 2}]]

    def test_partly_failed_rows_are_not_merged(self, job_pass: JobPass) -> None:
        """A retry of failed rows removes their entry with all of its files."""
        mixed = merged([good(0, 0, [0]), replace(failed(0, 0), input_ids=NO_IDS)])
        entries = self.merged(job_pass, mixed, good(0, 1, [1]), good(0, 2, [2]))
        assert self.rows(job_pass) == [[{"n": 0}], [{"n": 1}, {"n": 2}]]
        left = without_failed_rows(Snapshot(OURS, "", entries), job_pass.layout.errors)
        assert left.missing_rows(1, 3) == {0: [(0, 1)]}
        assert [len(entry.data) for entry in left.entries] == [1]

    def test_rows_of_one_file_are_in_memory_at_a_time(
        self, job_pass: JobPass, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Values that repeat take much more memory than the bytes of their file."""
        peaks: list[int] = []
        read = RewriteTask._table

        def measured(self: RewriteTask, file: DataFile) -> pa.Table:
            peaks.append(pa.total_allocated_bytes())
            return read(self, file)

        monkeypatch.setattr(RewriteTask, "_table", measured)
        batches = [good(0, row, table("x" * (4 << 20))) for row in range(20)]
        self.writer = replace(PARQUET, row_group_bytes=4 << 20)
        before = pa.total_allocated_bytes()
        self.merged(job_pass, *batches)
        assert len(peaks) == 20
        assert max(peaks) - before < 8 * (4 << 20)

    def test_changed_file_is_not_merged(self, job_pass: JobPass) -> None:
        commit_rows(job_pass, good(0, 0, [0]), 0)
        (changed,) = data_files(Path(job_pass.layout.output.path))
        changed.write_bytes(content := changed.read_bytes()[:-1] + b"x")
        self.merged(job_pass, good(0, 1, [1]), good(0, 2, [2]), first=1)
        assert changed.read_bytes() == content
        changed.unlink()
        assert self.rows(job_pass) == [[{"n": 1}, {"n": 2}]]

    def test_files_of_earlier_runs_are_kept(self, job_pass: JobPass) -> None:
        self.merged(job_pass, good(0, 0, [0]), good(0, 1, [1]), good(0, 2, [2]), earlier=1)
        assert self.rows(job_pass) == [[{"n": 0}], [{"n": 1}, {"n": 2}]]

    def test_sizes_are_limited(self, job_pass: JobPass) -> None:
        for row in range(6):
            commit_rows(job_pass, good(0, row, [row]), task=row)
        sizes = (*[SMALL_BYTES] * (1 + MERGED_BYTES // SMALL_BYTES), SMALL_BYTES + 1)
        entries = list(map(of_size, close_pass(job_pass).entries, sizes))
        mergeable = [file.name for entry in entries for file in entry.data]
        (task,), others = rewrites(job_pass, entries, PARQUET, mergeable)
        assert (task.entries, others) == (entries[:4], [entries[5], entries[4]])

    def test_rows_are_limited(self, job_pass: JobPass) -> None:
        """Files of a few bytes may hold rows that take much memory."""
        third = MERGED_ROWS // 3
        small = [good(0, n * third, [n] * third) for n in range(5)]
        self.merged(job_pass, *small, good(0, 5 * third, [5] * MERGED_ROWS))
        assert sorted(map(len, self.rows(job_pass))) == [2 * third, 3 * third, MERGED_ROWS]


COLUMNS = {
    "null and others": ([table(None), table(["a"]), table(None)], pa.list_(pa.string())),
    "integers and floats": ([table(1), table(0.5), table(None)], pa.float64()),
    "missing in a file": ([table(1, name="m"), table("a")], pa.string()),
    "null in all files": ([table(None), table(None)], pa.null()),
}


@pytest.mark.parametrize(("tables", "expected"), COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("merges", [False, True])
def test_all_files_have_the_same_columns(
    tmp_path: Path, tables: list[pa.Table], expected: pa.DataType, merges: bool
) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": ["x"] * len(tables)})
    job_pass = begin_pass(layout_of(tmp_path / "out"), source)
    for row, each in enumerate(tables):
        commit_rows(job_pass, good(0, row, each), task=row)
    entries = rewritten(job_pass, close_pass(job_pass), first=0 if merges else None)
    files = [Path(job_pass.layout.output.path, one.name) for entry in entries for one in entry.data]
    assert len(files) == (1 if merges else len(tables))
    for entry, file in zip(entries, files, strict=True):
        schema = pq.read_schema(file)
        assert schema.field("n").type == expected
        assert dict(entry.columns) == {field.name: str(field.type) for field in schema}
    query = duckdb.sql(f"select count(n) from read_parquet({[str(file) for file in files]})")
    values = [value for each in tables if "n" in each.column_names for value in each["n"]]
    assert query.fetchall() == [(sum(value.is_valid for value in values),)]


TEXTS = {
    "csv": ('"a","b","c"\n1,"x,\n""y""",\n,"",\n', '"a","b","c"\n2.5,,"[1.5]"\n,,\n'),
    "json": (
        '{"a": 1, "b": "x,\\n\\"y\\"", "c": null}\n{"a": null, "b": "", "c": null}\n',
        '{"a": 2.5, "b": null, "c": [1.5]}\n{"a": null, "b": null, "c": null}\n',
    ),
}


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("name", TEXTS)
def test_all_text_files_have_the_same_columns_in_one_order(
    tmp_path: Path, name: str, compression: str, merges: bool
) -> None:
    job_pass = begin_pass(layout_of(tmp_path / "out"), write_lines(tmp_path / "in", {"a": ["x"]}))
    write = write_of(name, compression=compression)
    committer = committing(job_pass, writer_for(write))
    other = pa.table({"c": [[1.5], None], "a": [2.5, None]})
    committer.put(good(0, 2, other), 0)
    committer.put(good(0, 0, pa.table({"a": [1, None], "b": ['x,\n"y"', ""]})), 1)
    form, first_merged = rewriting_writer_for(write), 0 if merges else None
    assert form is not None
    entries = rewritten(job_pass, close_pass(job_pass), form, first_merged)
    entries.sort(key=lambda entry: entry.row_ranges)
    files = [(job_pass.layout.data / one.name).read() for entry in entries for one in entry.data]
    texts = [(gzip.decompress(file) if compression == "gzip" else file).decode() for file in files]
    first, second = TEXTS[name]
    part = first + (second.split("\n", 1)[1] if name == "csv" else second)
    assert texts == ([part] if merges else [first, second])


def take_over(job_pass: JobPass, end: Snapshot) -> None:
    JobPass.begin(job_pass.layout, job_pass.lease, end)


def finish(job_pass: JobPass, end: Snapshot) -> None:
    job_pass.write_unified_snapshot(end)


@pytest.mark.parametrize("happens", [take_over, finish])
@pytest.mark.parametrize("moment", ["before the write", "after it"])
def test_late_rewrite_leaves_no_file(
    job_pass: JobPass,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[JobPass, Snapshot], None],
    moment: str,
) -> None:
    end, task = rewriting(job_pass)
    output = Path(job_pass.layout.output.path)
    before, write = names(output), Location.write

    def written(self: Location, content: bytes) -> None:
        monkeypatch.setattr(Location, "write", write)
        write(self, content)
        happens(job_pass, end)

    if moment == "after it":
        monkeypatch.setattr(Location, "write", written)
    else:
        happens(job_pass, end)
    with pytest.raises(BadOutput):
        task()
    assert names(output) == before


def test_old_and_new_files_exist_until_a_snapshot_names_the_new_ones(job_pass: JobPass) -> None:
    end, task = rewriting(job_pass)
    (entry,) = task()
    output = Path(job_pass.layout.output.path)
    assert len(names(output)) == 3
    assert job_pass.load_committed().entries == end.entries, "the new file does not count yet"
    unified = end.with_entries([entry, end.entries[1]])
    job_pass.write_unified_snapshot(unified)
    assert [one.data for one in job_pass.load_committed().entries] == [
        one.data for one in unified.entries
    ]
    job_pass.remove_orphans(unified.entries)
    assert names(output) == {file.name for one in unified.entries for file in one.data}


def test_snapshot_of_an_earlier_pass_is_not_used(job_pass: JobPass) -> None:
    """A late driver has written it after another pass began."""
    end, _ = rewriting(job_pass)
    later = JobPass.begin(job_pass.layout, job_pass.lease, end)
    stale = Snapshot(end.work, end.input, [], {}, job_pass.number)
    job_pass.layout.final_snapshot.write(stale.serialized())
    assert later.load_committed().entries == end.entries


def test_file_names_are_never_reused(tmp_path: Path) -> None:
    job = small_job(write_input(tmp_path / "in"), tmp_path / "out")
    run_without_ray(job)
    job_pass = last_pass(job)
    layout = job_pass.layout
    committed = {
        file.name: file
        for manifest in job_pass.manifests()
        for entry in manifest.entries
        for file in entry.data
    }
    final = {file.name: file for entry in Snapshot.read(layout.final_snapshot, layout.key).entries
             for file in entry.data}  # fmt: skip
    assert len(final) < len(committed)
    assert final.keys() - committed.keys(), "some were rewritten"
    assert all(committed[name] == final[name] for name in final.keys() & committed.keys())


def test_types_of_columns_are_read_without_whole_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in", {"a.txt": ["x"] * 2})
    job_pass = begin_pass(layout_of(tmp_path / "out"), source)
    for row, value in enumerate((1, 0.5)):
        commit_rows(job_pass, good(0, row, pa.table({"n": [value]})), task=row)
    entries = close_pass(job_pass).entries
    monkeypatch.setattr(Location, "read", Mock(side_effect=AssertionError("a file is read")))
    schema = OutputSchema.of(job_pass.layout.output, entries, PARQUET)
    assert schema.types == pa.schema([("n", pa.float64())])
