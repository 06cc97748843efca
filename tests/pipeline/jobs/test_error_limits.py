"""How many bad rows are too many, and what is said then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline import rows
from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.failures import TooManyErrors
from batchinference.pipeline.inputs import freeze_input
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.manifest import Counts
from batchinference.pipeline.sink import Commit
from batchinference.pipeline.sizing import RowCount
from batchinference.pipeline.storage import Address
from batchinference.pipeline.supervise import check_errors
from batchinference.pipeline.writers.cut import Cut
from batchinference.pipeline.writers.parquet import ParquetWriter
from batchinference.spec.error_policy import ErrorPolicy
from support.job_runs import write_lines


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """An attempt that has committed one bad row."""
    source = write_lines(tmp_path / "in", {"a.txt": ["x"]})
    output = Address(str(tmp_path / "out"))
    layout = Layout("0" * 64, output, output / "_batchinference", output / "errors")
    layout.input.write(freeze_input([str(source)], []).serialized())
    attempt = Attempt.open(layout, 1)
    bad = rows.failed_row(rows.pack(0, 41), "embed", ValueError("too long"))
    Commit(attempt, ParquetWriter("snappy"), Cut()).put(bad, task=0)
    return attempt


def judge(attempt: Attempt, policy: dict[str, Any], failed: int, total: int | None) -> None:
    known = None if total is None else RowCount(total, estimated=False)
    check_errors(ErrorPolicy.model_validate(policy), Counts(failed, 0, failed, 0), known, attempt)


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
def test_within_the_limit_a_job_goes_on(
    attempt: Attempt, policy: dict[str, Any], failed: int, total: int | None
) -> None:
    judge(attempt, policy, failed, total)


@pytest.mark.parametrize(
    ("policy", "failed", "total", "limit"),
    [
        ({}, 1, 100, "none is allowed unless spec.errors says so"),
        ({}, 1, None, "none is allowed unless spec.errors says so"),
        ({"maxRows": 0}, 1, 100, "errors.maxRows (0)"),
        ({"maxRows": 3}, 4, None, "errors.maxRows (3)"),
        ({"maxPercent": 5.0}, 6, 100, "errors.maxPercent (5 % of 100 rows)"),
        ({"maxPercent": 0.5}, 1, 100, "errors.maxPercent (0.5 % of 100 rows)"),
        ({"maxPercent": 0.0}, 1, 100, "errors.maxPercent (0 % of 100 rows)"),
        ({"maxPercent": 0.0}, 1, None, "none is allowed unless spec.errors says so"),
        ({"maxRows": 3, "maxPercent": 50.0}, 4, 100, "errors.maxRows (3)"),
        ({"maxRows": 60, "maxPercent": 50.0}, 51, 100, "errors.maxPercent (50 % of 100 rows)"),
    ],
    ids=str,
)
def test_beyond_it_the_job_fails_and_says_which_limit(
    attempt: Attempt, policy: dict[str, Any], failed: int, total: int | None, limit: str
) -> None:
    with pytest.raises(TooManyErrors, match=re.escape(f"{failed} row(s) failed, limit: {limit}.")):
        judge(attempt, policy, failed, total)


def test_one_bad_row_is_told_as_an_example(attempt: Attempt, tmp_path: Path) -> None:
    with pytest.raises(TooManyErrors) as raised:
        judge(attempt, {}, 1, 100)
    expected = f"row 41 of {tmp_path / 'in' / 'a.txt'}, step 'embed': ValueError: too long"
    assert raised.value.message.endswith(f"One of them: {expected}")


def test_an_example_that_is_not_to_be_found_is_no_failure_of_its_own(tmp_path: Path) -> None:
    address = Address(str(tmp_path / "out"))
    layout = Layout("0" * 64, address, address / "_batchinference", address / "errors")
    with pytest.raises(TooManyErrors, match=r"One of them: \(unknown\)"):
        judge(Attempt.open(layout, 1), {}, 1, 100)
