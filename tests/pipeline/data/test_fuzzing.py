"""Readers survive damaged and hostile files: no crash, no hang, no failed job, bounded memory.

A landing runs a sample, and the group `fuzz` runs more files. To run 20,000 files of each format:
FUZZ_FILES=20000 python -m pytest tests/pipeline/data/test_fuzzing.py --long fuzz
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fuzzing.fuzzer import Worker, fuzz
from support.fuzzing.seeds import OPTIONS, target
from support.tiers import examples, in_long_tier

FILES = int(os.environ.get("FUZZ_FILES", examples(300, 30)))
SEED = int(os.environ.get("FUZZ_SEED", "1"))

# at a landing, all formats share one worker, because a worker takes seconds to start
pytestmark = [pytest.mark.scaled("fuzz"), pytest.mark.timeout(4 * 3600)]
if not in_long_tier():
    pytestmark.append(pytest.mark.xdist_group("fuzz"))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.stop()


@pytest.mark.parametrize("name", OPTIONS)
def test_no_damaged_file_ends_a_job_or_its_process(
    worker: Worker, name: str, tmp_path: Path
) -> None:
    found = fuzz(worker, target(name, tmp_path), tmp_path, FILES, SEED)
    assert not found, "\n".join(found)
