"""The rows of input files are removed from a snapshot, without those of other files in the same
manifest entries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from batchinference.pipeline.commit.changed_input_files import merged_origins, without_input_files
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import ManifestEntry, Origin
from batchinference.pipeline.commit.retry_failed_rows import without_failed_rows
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.file_rewrites import without_removed
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import RowBatch, merged
from batchinference.pipeline.row_warnings import RowWarning, warning_table
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import WarningName
from support.jobs.on_ray import write_lines
from support.outputs.batches import end, failed, filtered, good
from support.outputs.builders import OURS, begin_pass, committing, entry, layout_of

WRITER = ParquetWriter("snappy")


def rows_of_file(file: int) -> RowBatch:
    """Return rows of a file with each outcome, and a warning."""
    written = good(file, 0, pa.table({"n": [10 * file, 10 * file + 1]}))
    warnings = warning_table("own", written.ids, [RowWarning(0, WarningName.TEXT_CUT, 3)])
    return merged([written.with_warnings(warnings), filtered(file, 2, 3), failed(file, 4)])


@pytest.fixture
def job_pass(tmp_path: Path) -> JobPass:
    source = write_lines(tmp_path / "in", {name: ["x"] for name in "abc"})
    return begin_pass(layout_of(tmp_path / "out"), source)


def committed(job_pass: JobPass, *files: int, by_file: bool = True) -> Snapshot:
    """Commit the rows of these files at once, and return the snapshot."""
    batch = merged([*map(rows_of_file, files), *(end(file, 5) for file in files)])
    replace(committing(job_pass), by_file=by_file).put(batch, task=len(files))
    return Snapshot(OURS, "").with_commits(job_pass.manifests(len(files)))


def test_other_files_count_as_if_they_had_been_committed_alone(job_pass: JobPass) -> None:
    left = without_input_files(committed(job_pass, 0, 1, 2), [1], [2])
    alone = committed(job_pass, 0)
    assert left.counts == alone.counts
    assert [entry.warnings for entry in left.entries] == [entry.warnings for entry in alone.entries]
    assert left.missing_rows(3, None) == {1: [(0, None)]}, "file 2 has no rows any more"
    assert (left.recomputed, left.removed) == ([1], [2])


def test_entry_that_does_not_know_its_files_is_computed_again(job_pass: JobPass) -> None:
    left = without_input_files(committed(job_pass, 0, 1, by_file=False), [1])
    assert left.entries == []
    assert left.missing_rows(2, None) == {0: [(0, 5)], 1: [(0, None)]}


def test_entry_without_rows_of_the_files_is_unchanged(job_pass: JobPass) -> None:
    both = committed(job_pass, 0, 1)
    assert without_input_files(both, [2]).entries == both.entries


@pytest.mark.parametrize("retry_first", [True, False])
def test_failed_rows_of_other_files_can_be_retried(job_pass: JobPass, retry_first: bool) -> None:
    left, errors = committed(job_pass, 0, 1), job_pass.layout.errors
    if retry_first:
        left = without_input_files(without_failed_rows(left, errors), [1])
    else:
        left = without_failed_rows(without_input_files(left, [1]), errors)
    assert left.missing_rows(2, None) == {0: [(4, 5)], 1: [(0, None)]}
    assert left.counts == Counts(read=4, written=2, filtered=2, warned=1)


def test_files_lose_the_removed_rows_and_error_records(job_pass: JobPass) -> None:
    (entry,) = without_input_files(committed(job_pass, 0, 1, 2), [1], [2]).entries
    rewritten = without_removed(job_pass, entry, WRITER)
    (data,) = rewritten.data
    content = WRITER.read((job_pass.layout.data / data.name).read())
    assert content.column("n").to_pylist() == [0, 1]
    assert rewritten.errors is not None
    records = WRITER.read((job_pass.layout.errors / rewritten.errors.name).read())
    assert records.column("id").to_pylist() == ["0:4"]
    assert (rewritten.removed, [one.file for one in rewritten.origins]) == ([], [0])


def test_changed_file_is_not_rewritten(job_pass: JobPass) -> None:
    (entry,) = without_input_files(committed(job_pass, 0, 1), [1]).entries
    data = job_pass.layout.data / entry.data[0].name
    data.write(data.read() + b" ")
    with pytest.raises(BadOutput, match=entry.data[0].name):
        without_removed(job_pass, entry, WRITER)


def test_file_with_another_number_of_rows_is_not_rewritten(job_pass: JobPass) -> None:
    """The state is damaged, so it is unknown which rows are those of the other files."""
    (entry,) = without_input_files(committed(job_pass, 0, 1), [1]).entries
    first, other = entry.origins
    damaged = replace(entry, origins=[replace(first, rows=[(0, 1 << 60)]), other])
    with pytest.raises(BadOutput):
        without_removed(job_pass, damaged, WRITER)


def test_origins_of_merged_files_follow_each_other() -> None:
    def merged(*files: int) -> ManifestEntry:
        origins = [Origin(file, [(0, file + 1)], Counts(written=file + 1)) for file in files]
        return replace(entry(), origins=origins)

    origins = merged_origins([merged(0, 2), merged(2, 1), merged(2)])
    rows = [(one.file, one.rows, one.counts.written) for one in origins]
    assert rows == [(0, [(0, 1)], 1), (2, [(0, 6)], 6), (1, [(0, 2)], 2), (2, [(0, 3)], 3)]
    assert merged_origins([merged(0), entry([(1, 0, 2)])]) == []


def test_snapshot_with_origins_is_read_back(job_pass: JobPass) -> None:
    left = without_input_files(committed(job_pass, 0, 1, 2), [1], [2])
    directory = job_pass.directory / "start.json"
    directory.write(left.serialized())
    assert Snapshot.read(directory, OURS) == left
