"""Ray of a job's own: up while the job runs, and afterwards not a trace of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal, sys
import ray
from batchinference.pipeline.engine import embedded
from batchinference.plan.writing import with_writers

def mine(number, frame):
    pass

signal.signal(signal.SIGTERM, mine)
with embedded(cpus=1.5, directory=sys.argv[1], quiet=True):
    print("cpus", ray.cluster_resources()["CPU"] == with_writers(len(os.sched_getaffinity(0))))
    print("handler", signal.getsignal(signal.SIGTERM) is mine)
    print("module", ray.get(ray.remote(lambda: __import__("beside_the_file").VALUE).remote()))
try:
    ray.put("a thread that was left behind")
except Exception as error:
    print("afterwards", "started" in str(error))
print("up", ray.is_initialized())
"""


def test_it_has_cpus_for_write_tasks_too_and_stays_down_afterwards(tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text("VALUE = 7\n")
    script = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said == {
        "cpus": "True",
        "handler": "True",
        "module": "7",
        "afterwards": "True",
        "up": "False",
    }
    assert "ray" not in done.stderr.lower()
