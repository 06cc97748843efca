"""Reading the failed rows from an error file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.retry_errors import failed_ids, without_failed
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.row_batch import ROW_BITS, merged, pack_id
from batchinference.pipeline.row_warnings import RowWarning, warning_table
from batchinference.pipeline.storage.location import Location
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import WarningName
from support.jobs.on_ray import write_lines
from support.outputs.batches import failed, good
from support.outputs.builders import begin_attempt, close_attempt, commit_rows, layout_of


def stored(directory: Path, **columns: list[str | None]) -> Location:
    schema = pa.schema(dict.fromkeys(columns, pa.string()))
    pq.write_table(pa.table(columns, schema), directory / "part.parquet")
    return Location(str(directory / "part.parquet"))


def test_each_failed_row_is_listed_once(tmp_path: Path) -> None:
    """The file has several error records for a row of which several parts have failed."""
    ids: list[str | None] = ["3:8", "0:1", "3:8", "2:0"]
    failed, unread = failed_ids(stored(tmp_path, id=ids, step=["own", "read", "own", "own"]))
    assert failed.tolist() == [pack_id(0, 1), pack_id(2, 0), pack_id(3, 8)]
    assert unread.tolist() == [pack_id(0, 1)]


@pytest.mark.parametrize("id_", ["1", "one:1", ":", "", None])
def test_invalid_row_id_is_damage(tmp_path: Path, id_: str | None) -> None:
    with pytest.raises(BadOutput, match=r"part\.parquet' is missing, damaged"):
        failed_ids(stored(tmp_path, id=["1:1", id_], step=["read", "read"]))


def test_missing_column_is_damage(tmp_path: Path) -> None:
    with pytest.raises(BadOutput, match=r"part\.parquet' is missing, damaged"):
        failed_ids(stored(tmp_path, id=["1:1"]))


def test_failed_rows_are_cut_out_of_ranges_of_any_length(tmp_path: Path) -> None:
    """The ranges are those of a state file, which may be forged: they are not expanded."""
    most = 1 << ROW_BITS
    ids: list[str | None] = ["0:0", "0:5", "0:6", f"1:{most - 1}", "2:7"]
    errors = DataFile.of(stored(tmp_path, id=ids, step=["own"] * 5).path.rpartition("/")[2], b"")
    ranges = [(0, 0, 7), (0, 9, most), (1, 1, most), (2, 7, 8)]
    entry = ManifestEntry(Counts(read=2 * most, written=1, failed=5), ranges, [], [], [], errors)
    left = without_failed(Snapshot("0" * 64, "0" * 64, [entry]), Location(str(tmp_path)))
    assert left.entries[0].row_ranges == [(0, 1, 5), (0, 9, most), (1, 1, most - 1)]


def test_warning_about_the_file_of_a_failed_row_is_removed_with_the_row(tmp_path: Path) -> None:
    """The row is read again, with its warning."""
    attempt = begin_attempt(layout_of(tmp_path / "out"), write_lines(tmp_path / "in", {"a": ["x"]}))
    rows = merged([good(0, 0, [1, 2]), failed(0, 2), failed(0, 3)])
    ids = np.array([pack_id(0, row) for row in (1, 2)])
    skipped = [RowWarning(row, WarningName.LINES_SKIPPED, row + 1) for row in range(2)]
    commit_rows(attempt, rows.with_warnings(warning_table("read", ids, skipped)))
    snapshot = close_attempt(attempt)
    assert snapshot.counts.warned == 2
    (left,) = without_failed(snapshot, attempt.layout.errors).entries
    assert (left.row_ranges, left.counts.warned) == ([(0, 0, 2)], 1)
    assert [(each.count, each.amount) for each in left.warnings] == [(1, 1)]
