"""Whole jobs between emulated clouds. Input and output each have their own storage settings."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq

from batchinference.spec.report import JobState
from support.jobs.on_ray import job_document, run_in_process
from support.servers.clouds import served

TEXTS = {"a.txt": b"one\ntwo\n", "deep/b.txt": b"three\n"}


def test_job_copies_rows_from_one_cloud_to_another(tmp_path: Path) -> None:
    with served("google") as google, served("azure") as azure:
        for name, content in TEXTS.items():
            google.put(f"lake/in/{name}", content)
        source = {"storage": {"endpoint": google.endpoint, "anonymous": True}}
        target = {"endpoint": azure.endpoint, "anonymous": True}
        run = run_in_process(
            job_document(
                "clouds",
                "gs://lake/in/",
                "az://results/out",
                read={**source, "options": {"includePaths": True}},
                write={"format": "parquet", "storage": target},
            )
        )
        assert run.report.state == JobState.SUCCEEDED, run.report.message
        written = azure.objects
    parts = [name for name in written if name.startswith("results/out/part-")]
    rows = [row for part in parts for row in pq.read_table(io.BytesIO(written[part])).to_pylist()]
    assert sorted((row["text"], row["path"]) for row in rows) == [
        ("one", "gs://lake/in/a.txt"),
        ("three", "gs://lake/in/deep/b.txt"),
        ("two", "gs://lake/in/a.txt"),
    ]
    assert "results/out/_SUCCESS" in written
    assert "results/out/_batchinference/report.json" in written
