"""What a worker process imports: nothing that only the driver or other jobs need. Every import
costs time in each worker of each job."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.commit_tasks import CommitTask
from batchinference.pipeline.execution.row_files import committer_for
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.execution.worker_stop import StopRequest
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.plan import plan_for_machine
from batchinference.spec import parse
from support.jobs.on_ray import job_document
from support.outputs.builders import begin_job

WORKER = """
import json, pickle, sys
import ray.data, pyarrow.parquet

before = set(sys.modules)
pickle.load(sys.stdin.buffer)(retried=False)
print(json.dumps(sorted(set(sys.modules) - before)))
"""
"""Runs a task, as a worker does."""
NEEDED = {"batchinference.plan", "batchinference.plan.stages"}
UNUSED = (
    *("PIL", "pyarrow.dataset", "fsspec", "torch"),
    *("batchinference.plan", "batchinference.cli"),
    *("ray.data._internal.execution.streaming_executor", "ray.data._internal.issue_detection"),
    *(f"batchinference.spec.{name}" for name in (
        "cluster", "crd_schema", "job", "read", "report", "status", "validation_messages", "write",
        "yaml_documents")),
)  # fmt: skip


def imported(task: CommitTask) -> set[str]:
    """Return the modules that a worker imports to run a task, except the modules of Ray Data."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps(task),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr.decode()
    return set(json.loads(done.stdout))


def test_worker_imports_only_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "in" / "a.parquet")
    document = job_document(
        "job",
        tmp_path / "in",
        tmp_path / "out",
        read={"format": "parquet"},
        steps=[{"name": "same", "python": {"callable": "copy:copy"}}],
        write={"format": "parquet"},
    )
    spec = parse(document).spec
    prepared = begin_job(document)
    (read,) = prepared.input.read_tasks(1)
    errors = ErrorHandling(True, prepared.job_pass.layout.input)
    steps = Segment.of_job(plan_for_machine(spec, gpus=0), errors)
    committer = committer_for(spec.write, prepared.job_pass, writer_for(spec.write), errors)
    stop = StopRequest(prepared.job_pass.lease.run)
    modules = imported(CommitTask(0, read, steps, committer, CommitRules(1), stop))
    assert prepared.counts().written == 3
    unused = {name for name in modules if any(f"{name}.".startswith(f"{one}.") for one in UNUSED)}
    assert sorted(unused - NEEDED) == []
