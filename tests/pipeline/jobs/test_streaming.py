"""An input much larger than the object store streams through it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.jobs.on_ray import job_document

STORE = 80 << 20
SIDE = 512
IMAGES = 4 * STORE // (SIDE * SIDE * 3) + 1
"""Their pixels take more than four times the size of the object store."""

RUN = """
import sys, yaml, ray
from contextlib import nullcontext
from batchinference.pipeline.job import JobRun
from batchinference.pipeline.execution.stop_signals import StopSignal
from batchinference.plan import plan_for_machine
from batchinference.spec import parse

ray.init(num_cpus=3, object_store_memory=int(sys.argv[2]), include_dashboard=False,
         log_to_driver=False)
job = parse(yaml.safe_load(open(sys.argv[1])))
plan = nullcontext(plan_for_machine(job.spec, gpus=0))
report = JobRun(job, lambda: plan, lambda report: None, StopSignal()).run()
print(report.serialized().decode())
"""


def images(directory: Path) -> Path:
    """Write small files with large images, and return their directory."""
    directory.mkdir()
    first = directory / "0000.jpg"
    Image.new("RGB", (SIDE, SIDE), (255, 0, 128)).save(first)
    for number in range(1, IMAGES):
        (directory / f"{number:04d}.jpg").hardlink_to(first)
    return directory


@pytest.mark.long("memory")
def test_memory_stays_bounded(tmp_path: Path, own_code: Path) -> None:
    steps = [
        {
            "name": "mean",
            "python": {"callable": "own_code:Brightness"},
            "batchSize": 16,
            "replicas": {},
        },
        {"name": "slim", "dropColumns": ["image"]},
    ]
    job = job_document(
        "streaming",
        images(tmp_path / "in"),
        tmp_path / "out",
        read={"format": "images"},
        write={"format": "parquet"},
        steps=steps,
    )
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(job))
    ended = subprocess.run(
        [sys.executable, "-c", RUN, file, str(STORE)],
        cwd=own_code.parent,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads(ended.stdout[ended.stdout.index("{") :])
    assert report["state"] == "succeeded", report
    assert report["counts"]["written"] == IMAGES
    assert np.prod([IMAGES, SIDE, SIDE, 3]) > 4 * STORE
    assert report["memory"]["spilledBytes"] <= STORE // 2
    # a process with Ray and NumPy takes about 200 MiB and maps the whole object store
    assert report["memory"]["peakWorkerBytes"] < (450 << 20) + STORE
