"""A model on a device with memory for 12 rows: batches become smaller, and no row is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.jobs.on_ray import errors_of, job_document, run_in_process
from support.outputs.rows import rows_of

ROWS, MOST = 300, 12
FEATURES = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)


def job_of(directory: Path, batch_size: Any) -> Document:
    """Return a job that reads four files into the model."""
    source = directory / "in"
    source.mkdir()
    for number, part in enumerate(np.array_split(np.arange(ROWS), 4)):
        table = pa.table({"id": part, "features": FEATURES[part].tolist()})
        pq.write_table(table, source / f"{number}.parquet")
    model = {
        "runtime": "torch",
        "factory": "own_models:small_device",
        "factoryArgs": {"limit": MOST},
        "inputs": {"features": "features"},
        "output": "sum",
    }
    step = {
        "name": "sum",
        "model": model,
        "batchSize": batch_size,
        "replicas": {},
        "resources": {"cpu": 0.5},
    }
    read = {"format": "parquet"}
    return job_document("small", source, directory / "out", read=read, steps=[step])


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize(("size", "tried", "kept"), [("auto", [16], 8), (50, [50, 25], 12)])
def test_job_completes_with_at_most_12_rows_a_batch(
    tmp_path: Path, size: Any, tried: list[int], kept: int
) -> None:
    run = run_in_process(job_of(tmp_path, size))
    assert run.report.state == JobState.SUCCEEDED, run.report.message
    assert run.counts == (ROWS, ROWS, 0, 0)
    rows = sorted(rows_of(tmp_path / "out"), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(ROWS))
    assert [row["sum"] for row in rows] == FEATURES.sum(axis=1).tolist()
    assert errors_of(tmp_path / "out") == []

    assert run.report.batch_sizes == {"sum": kept}
    sizes = [*tried, kept]
    assert set(run.report.notes) == {
        f"step 'sum': memory ran out with {rows} rows, now {rows // 2} rows a batch"
        for rows in sizes[:-1]
    }
