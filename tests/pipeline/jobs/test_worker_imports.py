"""What a worker process imports: neither the specification nor libraries of other formats.

Every import costs time in each worker of each job."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.input.files import open_files
from batchinference.pipeline.output.file_layout import FileLayout
from batchinference.pipeline.output.writers import writer_for
from batchinference.pipeline.steps.user_code import python_transform
from batchinference.spec import parse
from batchinference.spec.python_step import PythonStep
from batchinference.spec.read import ReadFiles
from batchinference.spec.write import WriteFiles
from support.jobs.on_ray import job_document

WORKER = """
import json, pickle, sys
import ray.data, pyarrow.parquet

before = set(sys.modules)
task, step, writer, cut, layout = pickle.load(sys.stdin.buffer)
import batchinference.pipeline.commit.attempt
for table in task():
    for _, rows in cut.split(table):
        if "n" in rows.column_names:
            list(writer.files(step(rows.select(["n"]))))
(layout.output / "part").exists()
print(json.dumps(sorted(set(sys.modules) - before)))
"""
"""Does what a worker does for a job with Parquet files and a Python step."""
NEEDED = {"batchinference.spec", *(f"batchinference.spec.{name}" for name in (
    "addresses", "base", "reserved", "storage"))}  # fmt: skip
"""Modules of the specification that reading, committing and steps need, with pydantic: workers
check the lease, which others may have changed."""
UNUSED = ("PIL", "pyarrow.dataset", "fsspec", "torch", "batchinference.plan")


def imported(source: str, output: str) -> set[str]:
    """Return the modules that a worker imports, except those of Ray Data."""
    document = job_document("job", source, output, read={"format": "parquet"},
                            write={"format": "parquet"})  # fmt: skip
    spec = parse(document).spec
    assert isinstance(spec.read, ReadFiles)
    assert isinstance(spec.write, WriteFiles)
    (task,) = open_files(spec.read).read_tasks(1)
    step = python_transform("keep", PythonStep(callable="copy:copy"))
    parts = (task, step, writer_for(spec.write), FileLayout.of(spec.write), Layout.of(spec))
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps(parts),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr.decode()
    return set(json.loads(done.stdout))


def test_worker_imports_only_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "in" / "a.parquet")
    modules = imported(str(tmp_path / "in"), str(tmp_path / "out"))
    assert "batchinference.pipeline.input.readers.parquet" in modules
    spec = {name for name in modules if name.startswith("batchinference.spec")}
    unused = {name for name in modules if any(f"{name}.".startswith(f"{one}.") for one in UNUSED)}
    assert sorted(spec - NEEDED | unused) == []
