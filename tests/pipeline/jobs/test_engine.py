"""Ray of a job's own: up while the job runs and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline import engine
from batchinference.plan.writing import with_writers

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


def test_embedded_ray_has_cpus_for_write_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It restores the handler that Ray replaces, and never starts again by itself."""
    started: list[dict[str, Any]] = []

    def init(**arguments: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        started.append(arguments)

    monkeypatch.setattr(engine.ray, "init", init)
    monkeypatch.setattr(engine.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(engine.ray, "shutdown", lambda: started.append({}))
    monkeypatch.setattr(engine.auto_init_hook, "enable_auto_connect", True)
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.syspath_prepend("unused")  # restores sys.path
    handler = signal.getsignal(signal.SIGTERM)
    with engine.embedded(1.5, str(tmp_path), quiet=True) as found:
        assert found == {"CPU": 2.0}
        assert signal.getsignal(signal.SIGTERM) is handler
        assert len(started) == 1
    cpus = with_writers(len(os.sched_getaffinity(0)))
    assert started == [{"num_cpus": cpus, "include_dashboard": False, "log_to_driver": False}, {}]
    assert engine.auto_init_hook.enable_auto_connect is False
    assert sys.path[0] == str(tmp_path)
    assert os.environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}before"


@pytest.mark.long("memory")
def test_embedded_ray_on_this_machine(tmp_path: Path) -> None:
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
