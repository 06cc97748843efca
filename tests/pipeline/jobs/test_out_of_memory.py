"""A model on a device that holds 12 rows at once: the job goes on with fewer, and loses none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.spec.report import JobState
from support.job_runs import Run, errors_of, job_document, run_job
from support.outputs import rows_of

pytestmark = pytest.mark.usefixtures("ray")
ROWS, MOST = 300, 12
FEATURES = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


def run_of(directory: Path, batch_size: Any) -> Run:
    """Four files of rows through the model."""
    source = directory / "in"
    source.mkdir()
    for number, part in enumerate(np.array_split(np.arange(ROWS), 4)):
        table = pa.table({"id": part, "features": FEATURES[part].tolist()})
        pq.write_table(table, source / f"{number}.parquet")
    model = {
        "runtime": "torch",
        "factory": "own_models:small_device",
        "factoryArgs": {"most": MOST},
        "inputs": {"features": "features"},
        "output": "sum",
    }
    step = {
        "name": "sum",
        "model": model,
        "batchSize": batch_size,
        "resources": {"cpu": 0.5},
    }
    read = {"format": "parquet"}
    return run_job(job_document("small", source, directory / "out", read=read, steps=[step]))


@pytest.mark.parametrize(
    ("batch_size", "tried", "kept"),
    [pytest.param("auto", [16], 8, id="auto"), pytest.param(50, [50, 25], 12, id="50")],
)
def test_the_job_completes_with_at_most_12_rows_a_batch(
    tmp_path: Path, batch_size: Any, tried: list[int], kept: int
) -> None:
    run = run_of(tmp_path, batch_size)
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    assert run.counts == (ROWS, ROWS, 0, 0)
    found = sorted(rows_of(tmp_path / "out"), key=lambda row: row["id"])
    assert [row["id"] for row in found] == list(range(ROWS))
    assert [row["sum"] for row in found] == FEATURES.sum(axis=1).tolist()
    assert errors_of(tmp_path / "out") == []

    assert run.report.batch_sizes == {"sum": kept}
    assert kept <= MOST
    sizes = [*tried, kept]
    assert set(run.report.notes) == {
        f"step 'sum': memory ran out with {rows} rows, now {rows // 2} rows a batch"
        for rows in sizes[:-1]
    }
    assert run.report.memory is not None
    assert run.report.memory.peak_worker_bytes > 50 << 20
