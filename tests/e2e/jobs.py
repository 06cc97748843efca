"""The jobs that the tests run: slow ones, and the examples of the repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.cluster.object_store import ObjectStore
from support.outputs.rows import Row, rows_of

Job = dict[str, Any]
GATED, PAUSED, LONG = 400, 1200, 2000
"""Row counts of slow jobs."""
SLOT = "batchinference.test/slot"
"""A label of the node. Pods that select it are pending until `open_slot` has set it."""
CODE = """
import os, socket, time, uuid
from functools import lru_cache
from pyarrow.fs import FileType, S3FileSystem  # every version of the pipeline has it

@lru_cache
def opened():
    return S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], region="us-east-1")

@lru_cache
def wait_for(gate):
    store = opened()
    while store.get_file_info(gate.removeprefix("s3://")).type == FileType.NotFound:
        time.sleep(0.5)

def hold(batch, last, gate):
    if last in batch["text"]:
        wait_for(gate)
    return batch

class Slow:
    def __call__(self, batch, last, gate):
        time.sleep(0.4)
        return hold(batch, last, gate)

class Counted(Slow):
    def __call__(self, batch, last, gate):
        name = f"{gate.removeprefix('s3://')}-batches/{uuid.uuid4().hex}-{len(batch['text'])}"
        opened().open_output_stream(name).close()
        return super().__call__(batch, last, gate)

class Faulty(Slow):
    def __call__(self, batch, last, gate, node):
        if os.environ["BATCHINFERENCE_NODE"] == node:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return super().__call__(batch, last, gate)

def prepare(row):
    return {**row, "prepared_on": socket.gethostname()}

def divide(batch):
    if gate := os.environ.get("GATE"):
        wait_for(gate)
    raise ZeroDivisionError("no row can be divided today")
"""


def counts(rows: int) -> dict[str, int]:
    """Return the counts of a slow job that is complete."""
    rest = rows // 10
    return {"read": rows, "written": rows - rest, "failed": 0, "filtered": rest, "warned": 0}


@dataclass(frozen=True)
class Example:
    """An example of the repository whose input is in the object store too."""

    directory: Path
    store: ObjectStore
    key: str

    def job(self) -> Job:
        """Return the job with paths in the object store, and otherwise unchanged."""
        return self._job(self.store.uri(self.key))

    def rows(self, target: Path) -> list[Row]:
        """Download the output to `target` and return the rows that the job has written."""
        return rows_of(self.store.download(f"{self.key}/out", target))

    def local_rows(self) -> list[Row]:
        """Return the rows that the job writes on this machine, without Ray."""
        from support.jobs.without_ray import run_without_ray

        run_without_ray(self._job(str(self.directory)), rows_per_task=200)
        return rows_of(self.directory / "out")

    def _job(self, path: str) -> Job:
        text = (self.directory / "job.yaml").read_text()
        job: Job = yaml.safe_load(text.replace(" ./", f" {path}/").replace("[./", f"[{path}/"))
        return job
