"""The coverage case of resume.py: `coverage_case.py DIRECTORY write`, then `... read`.

`write` creates the state of an output of a billion rows without its last manifest. `read` finds the
missing rows, as a resumed run does, and prints seconds, missing rows and peak memory in MiB.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import read_lease
from batchinference.pipeline.commit.manifest import DataFile, Manifest, ManifestEntry
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.progress import Counts
from support.documents.minimal import document

ROWS, MANIFESTS = 1_000_000_000, 10_000
"""Each manifest has as many rows as a file: the second half of one file and the first half of the
next."""
EACH = ROWS // MANIFESTS


def spec_in(directory: Path) -> BatchInferenceSpec:
    write = {"format": "parquet", "path": str(directory / "out")}
    return parse(document("covered", write=write)).spec


def write(directory: Path) -> None:
    layout = Layout.of(spec_in(directory))
    job_pass = JobPass.begin(layout, None, Snapshot(layout.key, "0" * 64))
    path = Path(job_pass.directory.path)
    for task in range(MANIFESTS - 1):
        manifest = _manifest(layout, task)
        (path / manifest.new_name()).write_bytes(manifest.serialized())
        for file in manifest.entries[0].data:
            (Path(layout.output.path) / file.name).touch()


def _manifest(layout: Layout, task: int) -> Manifest:
    middle = EACH // 2
    row_ranges = [(task, middle, EACH), ((task + 1) % MANIFESTS, 0, middle)]
    data = [DataFile(layout.file_prefix(1, task, f"{task:08x}") + "-0000.parquet", 0, 0)]
    columns = [("id", "int64"), ("text", "string"), ("embedding", "list<element: float>")]
    entry = ManifestEntry(Counts(read=EACH, written=EACH), row_ranges, [], data, columns, None)
    return Manifest(task, 0, [entry], [(task, EACH)], [("write", '{"peak_bytes": 314159265}')])


def read(directory: Path) -> None:
    spec = spec_in(directory)
    layout = Layout.of(spec)
    began = time.monotonic()
    lease = read_lease(layout)
    assert lease is not None
    before = JobPass(layout, lease).load_committed()
    gaps = before.missing_rows(MANIFESTS, None)
    seconds = time.monotonic() - began
    last = MANIFESTS - 1
    assert gaps == {0: [(0, EACH // 2)], last: [(EACH // 2, None)]}, gaps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{seconds:.2f} s, {ROWS - before.counts.read} rows missing, {peak} MiB")


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[2]](Path(sys.argv[1]))
