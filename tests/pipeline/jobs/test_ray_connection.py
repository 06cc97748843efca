"""The embedded Ray of a job: it runs while the job runs, and is stopped afterwards."""

from __future__ import annotations

import logging
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline import ray_compat
from batchinference.pipeline.errors import Interrupted, JobFailure
from batchinference.pipeline.execution import ray_connection

SCRIPT = """
import os, signal, sys
import ray
from batchinference.pipeline.execution.ray_connection import local_ray, ray_files

def mine(number, frame):
    pass

signal.signal(signal.SIGTERM, mine)
with ray_files() as files, local_ray(3, sys.argv[1], files, quiet=True):
    print("hidden while Ray is up")
    facts = {
        "private": oct(os.stat(files.path).st_mode & 0o777) == "0o700",
        "session": os.path.isdir(files.logs),
        "cpus": ray.cluster_resources()["CPU"] == 3,
        "handler": signal.getsignal(signal.SIGTERM) is mine,
        "module": ray.get(ray.remote(lambda: __import__("beside_the_file").VALUE).remote()),
    }
for name, fact in facts.items():
    print(name, fact)
try:
    ray.put("a thread that was left behind")
except Exception as error:
    print("afterwards", "started" in str(error))
print("up", ray.is_initialized())
print("left", os.path.exists(files.path))
"""


def test_local_ray_has_the_requested_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It restores the signal handler that Ray replaces, and Ray never starts again implicitly."""
    started: list[dict[str, Any]] = []

    def init(**arguments: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert ray_compat.ray_constants.ENABLE_RAY_CLUSTER is False  # it listens on loopback only
        started.append(arguments)

    monkeypatch.setattr(ray_connection.ray, "init", init)
    monkeypatch.setattr(ray_connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_connection.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray_connection.ray, "shutdown", lambda: started.append({}))
    monkeypatch.setattr(ray_connection.auto_init_hook, "enable_auto_connect", True)
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.syspath_prepend("unused")  # restores sys.path
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "shared by all runs")
    files = ray_connection.RayFiles(str(tmp_path / "ray"))
    with ray_connection.local_ray(3, str(tmp_path), files, quiet=True) as local_ray:
        assert local_ray == {"CPU": 2.0}
        assert re.fullmatch("[0-9a-f]{64}", os.environ["RAY_AUTH_TOKEN"])
        assert signal.getsignal(signal.SIGTERM) is handler
        assert len(started) == 1
    settings = {"num_cpus": 3, "include_dashboard": False, "log_to_driver": False}
    settings["logging_level"] = logging.ERROR
    system = {
        "enable_metrics_collection": False,
        "idle_worker_killing_time_threshold_ms": ray_connection.IDLE_SECONDS * 1000,
    }
    assert started == [{**settings, "_system_config": system, "_temp_dir": f"{files.path}/r"}, {}]
    assert os.environ["RAY_AUTH_TOKEN"] == "shared by all runs"
    assert ray_connection.auto_init_hook.enable_auto_connect is False
    assert sys.path[0] == str(tmp_path)
    assert os.environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}before"


@pytest.mark.parametrize("base", ["", "a" * 80])
def test_files_of_ray_are_private_and_short_enough_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}{base}")
    with ray_connection.ray_files() as files:
        assert stat.S_IMODE(Path(files.path).stat().st_mode) == 0o700
        assert (
            len(
                f"{files.ray_directory}/session_2026-01-01_00-00-00_000000_4194304/sockets/raylet.1"
            )
            < 104
        )
    assert not Path(files.path).exists()


def test_ray_logs_are_kept_if_a_message_names_them() -> None:
    with pytest.raises(JobFailure), ray_connection.ray_files() as files:
        raise JobFailure(f"Ray could not start. Its logs: {files.path}")
    assert Path(files.path).exists()
    Path(files.path).rmdir()
    with pytest.raises(Interrupted), ray_connection.ray_files() as files:
        raise Interrupted("stopped by SIGINT")
    assert not Path(files.path).exists()


@pytest.mark.long("remote")
def test_local_ray_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text("VALUE = 7\n")
    script = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    values = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert values == {
        "private": "True",
        "session": "True",
        "left": "False",
        "cpus": "True",
        "handler": "True",
        "module": "7",
        "afterwards": "True",
        "up": "False",
    }
    assert "ray" not in done.stderr.lower()
