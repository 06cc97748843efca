"""Failed rows of jobs: their number is limited, and they are read from error files."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry
from batchinference.pipeline.commit.retry_failed_rows import failed_ids, without_failed_rows
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadOutput, TooManyErrors
from batchinference.pipeline.execution.executor import Executor
from batchinference.pipeline.execution.prepared_pass import PreparedPass
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.planning import Sizing
from batchinference.pipeline.output.error_records import bad_row
from batchinference.pipeline.row_batch import ROW_BITS, merged, pack_id
from batchinference.pipeline.row_warnings import RowWarning, warning_table
from batchinference.pipeline.run_limits import check_errors, check_warnings
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import ErrorPolicy
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import WarningCount, WarningName
from plugins.messages import Messages
from support.documents.parsed import spec_of
from support.jobs.on_ray import write_lines
from support.outputs.batches import failed, good
from support.outputs.builders import begin_pass, close_pass, commit_rows, layout_of


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
    limit = 1 << ROW_BITS
    ids: list[str | None] = ["0:0", "0:5", "0:6", f"1:{limit - 1}", "2:7"]
    errors = DataFile.of(stored(tmp_path, id=ids, step=["own"] * 5).path.rpartition("/")[2], b"")
    ranges = [(0, 0, 7), (0, 9, limit), (1, 1, limit), (2, 7, 8)]
    entry = ManifestEntry(Counts(read=2 * limit, written=1, failed=5), ranges, [], [], [], errors)
    left = without_failed_rows(Snapshot("0" * 64, "0" * 64, [entry]), Location(str(tmp_path)))
    assert left.entries[0].row_ranges == [(0, 1, 5), (0, 9, limit), (1, 1, limit - 1)]


def test_warning_about_the_file_of_a_failed_row_is_removed_with_the_row(tmp_path: Path) -> None:
    """The row is read again, with its warning."""
    job_pass = begin_pass(layout_of(tmp_path / "out"), write_lines(tmp_path / "in", {"a": ["x"]}))
    rows = merged([good(0, 0, [1, 2]), failed(0, 2), failed(0, 3)])
    ids = np.array([pack_id(0, row) for row in (1, 2)])
    skipped = [RowWarning(row, WarningName.LINES_SKIPPED, row + 1) for row in range(2)]
    commit_rows(job_pass, rows.with_warnings(warning_table("read", ids, skipped)))
    snapshot = close_pass(job_pass)
    assert snapshot.counts.warned == 2
    (left,) = without_failed_rows(snapshot, job_pass.layout.errors).entries
    assert (left.row_ranges, left.counts.warned) == ([(0, 0, 2)], 1)
    assert [(each.count, each.amount) for each in left.warnings] == [(1, 1)]


Example = Callable[[], str]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    """Return a function that describes the one failed row that is committed."""
    layout = layout_of(tmp_path / "out")
    job_pass = begin_pass(layout, write_lines(tmp_path / "in", {"a.txt": ["x"]}))
    commit_rows(job_pass, failed(0, 41, "embed", ValueError("too long")))
    return partial(bad_row, layout, close_pass(job_pass).entries)


def test_steps_know_the_limit_of_failed_rows(tmp_path: Path) -> None:
    spec = spec_of(errors={"maxRows": 7})
    source = write_lines(tmp_path / "in", {"a.txt": ["x"]})
    job_pass = begin_pass(layout_of(tmp_path / "out"), source)
    run = PreparedPass(Mock(), None, Sizing(1, 1, 1), job_pass, Snapshot(job_pass.layout.key, ""))
    assert Executor(spec, Mock(), run)._errors.max_rows == 7


def judge(
    example: Example, policy: dict[str, Any], failed: int, total: int | None, read: int = 0
) -> None:
    known = None if total is None else RowCount(total, estimated=False)
    counts = Counts(read=read or failed, written=0, failed=failed, filtered=0)
    check_errors(ErrorPolicy.model_validate(policy), counts, known, example)


@pytest.mark.parametrize(
    ("policy", "failed", "total"),
    [
        ({}, 0, 100),
        ({"maxRows": 0}, 0, 100),
        ({"maxPercent": 0.0}, 0, 0),
        ({"maxRows": 3}, 3, 100),
        ({"maxRows": 3}, 3, None),
        ({"maxPercent": 5.0}, 5, 100),
        ({"maxPercent": 5.0}, 99, None),
        ({"maxPercent": 100.0}, 100, 100),
        ({"maxPercent": 0.1}, 1, 1000),
        ({"maxRows": 3, "maxPercent": 50.0}, 3, 100),
        ({"maxRows": 0, "maxPercent": 50.0}, 0, 100),
    ],
    ids=str,
)
def test_job_within_its_limit_continues(
    example: Example, policy: dict[str, Any], failed: int, total: int | None
) -> None:
    judge(example, policy, failed, total)


@pytest.mark.parametrize(
    ("policy", "failed", "total"),
    [
        ({}, 1, 100),
        ({}, 1, None),
        ({"maxRows": 0}, 1, 100),
        ({"maxRows": 3}, 4, None),
        ({"maxPercent": 5.0}, 6, 100),
        ({"maxPercent": 0.5}, 1, 100),
        ({"maxPercent": 0.0}, 1, 100),
        ({"maxPercent": 0.0}, 1, None),
        ({"maxRows": 3, "maxPercent": 50.0}, 4, 100),
        ({"maxRows": 60, "maxPercent": 50.0}, 51, 100),
    ],
    ids=str,
)
def test_job_beyond_its_limit_fails_with_the_limit(
    example: Example, policy: dict[str, Any], failed: int, total: int | None, messages: Messages
) -> None:
    with messages.raises(TooManyErrors):
        judge(example, policy, failed, total)


@pytest.mark.parametrize(
    ("policy", "failed", "total"),
    [
        ({}, 1, 100),
        ({"maxRows": 3}, 4, None),
        ({"maxRows": 0}, 1, 25),
        ({"maxPercent": 1.0}, 1, 25),
        ({"maxPercent": 1.0}, 7, 300),
        ({"maxPercent": 0.0}, 1, 1_000_000),
        ({"maxRows": 3, "maxPercent": 1.0}, 4, 100),
        ({"maxRows": 30, "maxPercent": 1.0}, 4, 100),
        ({"maxRows": 3, "maxPercent": 50.0}, 4, 100),
    ],
    ids=str,
)
def test_the_limits_of_the_message_suffice(
    example: Example, policy: dict[str, Any], failed: int, total: int | None
) -> None:
    read = total or 100
    with pytest.raises(TooManyErrors) as raised:
        judge(example, policy, failed, total, read)
    advised = re.findall(r"errors\.(\w+) to at least ([\d.]+\d|\d)", raised.value.message)
    assert advised
    limits = {name: int(value) if name == "maxRows" else float(value) for name, value in advised}
    judge(example, policy | limits, failed, total, read)
    for name, value in limits.items():
        with pytest.raises(TooManyErrors):
            judge(
                example, policy | limits | {name: max(round(value - 1, 3), 0)}, failed, total, read
            )


def test_no_limit_is_advised_if_most_rows_fail(example: Example) -> None:
    with pytest.raises(TooManyErrors) as raised:
        judge(example, {"maxRows": 3}, 60, 100, 100)
    assert "at least" not in raised.value.message


ABOUT_2000 = RowCount(2000, estimated=True)


@pytest.mark.parametrize(
    ("failed", "read", "percent"),
    [
        pytest.param(999, 999, 5.0, id="little is done"),
        pytest.param(150, 1500, 5.0, id="not beyond the margin"),
        pytest.param(300, 4000, 5.0, id="more rows than was thought"),
        pytest.param(2000, 2000, 100.0, id="all may fail"),
    ],
)
def test_estimate_does_not_end_a_job_early(
    example: Example, failed: int, read: int, percent: float
) -> None:
    policy = ErrorPolicy.model_validate({"maxPercent": percent})
    check_errors(
        policy, Counts(read=read, written=read - failed, failed=failed), ABOUT_2000, example
    )


@pytest.mark.parametrize(
    ("failed", "read", "rows"),
    [
        pytest.param(151, 1000, 2000, id="beyond the margin"),
        pytest.param(301, 4000, 4000, id="more rows than exist"),
    ],
)
def test_estimate_ends_a_job_far_beyond_its_limit(
    example: Example, failed: int, read: int, rows: int
) -> None:
    policy = ErrorPolicy.model_validate({"maxPercent": 5.0})
    message = f"{failed} rows failed, limit: errors.maxPercent (5 % of about {rows} rows)."
    with pytest.raises(TooManyErrors, match=re.escape(message)):
        check_errors(
            policy, Counts(read=read, written=read - failed, failed=failed), ABOUT_2000, example
        )


def test_one_failed_row_is_the_example(example: Example, tmp_path: Path) -> None:
    with pytest.raises(TooManyErrors) as raised:
        judge(example, {}, 1, 100)
    expected = f"row 41 of {tmp_path / 'in' / 'a.txt'}, step 'embed': ValueError: too long"
    assert raised.value.message.endswith(f"One of them: {expected}")


def test_example_that_cannot_be_read_does_not_replace_the_cause() -> None:
    def unreadable() -> str:
        raise FileNotFoundError("errors/part-0.parquet")

    with pytest.raises(TooManyErrors, match="1 row"):
        judge(unreadable, {}, 1, 100)


@pytest.mark.parametrize("limit", [{"maxRows": 6}, {"maxPercent": 60.0}], ids=str)
def test_limit_of_a_warning_is_for_each_step(limit: dict[str, Any]) -> None:
    def judge_warnings(*counts: int) -> None:
        policy = ErrorPolicy.model_validate({"warnings": [{"name": "TextCut", **limit}]})
        warnings = [
            WarningCount(name="TextCut", step=step, count=count, example=step, message="cut")
            for step, count in zip("ab", counts, strict=True)
        ]
        check_warnings(policy, warnings, Counts(read=10, written=10), RowCount(10, estimated=False))

    judge_warnings(6, 5)
    with pytest.raises(TooManyErrors, match=r"^7 row.*One of them: b$"):
        judge_warnings(6, 7)
