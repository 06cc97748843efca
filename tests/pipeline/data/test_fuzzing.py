"""Readers survive damaged and hostile files: no crash, no hang, no failed job, at most 1 GiB.

A landing runs a sample, and the group `fuzz` runs more files. To run 20,000 files of each format:
FUZZ_FILES=20000 python -m pytest tests/pipeline/data/test_fuzzing.py --long fuzz
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fuzzing.bombs import BOMBS
from support.fuzzing.fuzzer import Worker, fuzz
from support.fuzzing.seeds import OPTIONS
from support.tiers import examples, in_long_tier

FILES = int(os.environ.get("FUZZ_FILES", examples(300, 20)))
SEED = int(os.environ.get("FUZZ_SEED", "1"))

# at a landing, all formats share one worker, because a worker takes seconds to start
of_tier = pytest.mark.timeout(4 * 3600) if in_long_tier() else pytest.mark.xdist_group("fuzz")
pytestmark = [pytest.mark.scaled("fuzz"), of_tier]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.stop()


@pytest.mark.parametrize("name", OPTIONS)
def test_no_damaged_file_ends_a_job_or_its_process(
    worker: Worker, name: str, tmp_path: Path
) -> None:
    found = fuzz(worker, name, tmp_path, FILES, SEED)
    assert not found, "\n".join(found)


@pytest.mark.long("fuzz")
@pytest.mark.parametrize("name", BOMBS)
def test_parquet_file_that_expands_to_gigabytes_is_read_within_limits(
    worker: Worker, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    BOMBS[name](path)
    assert path.stat().st_size < 2 << 20
    assert worker.problem("parquet", path, {}) is None
