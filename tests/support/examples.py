"""The examples, run in this process from copies of their own."""

from __future__ import annotations

import copy as copies
import importlib
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from batchinference.cli.files import with_absolute_paths
from batchinference.plan import plan_for_machine
from batchinference.spec import BatchInference, parse
from support.documentation import ROOT
from support.job_runs import Run, run_job

EXAMPLES = ROOT / "examples"
MADE = ("data", "model", "encoder", "out", "__pycache__")


def prepared(name: str, directory: Path) -> Path:
    """A copy of an example with its input made, in this process, which has its libraries loaded."""
    copy = directory / name
    shutil.copytree(EXAMPLES / name, copy, ignore=shutil.ignore_patterns(*MADE))
    _find_modules_of(name)
    runpy.run_path(str(copy / "prepare.py"), run_name="__main__")
    return copy


def job_of(copy: Path) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((copy / "job.yaml").read_text())
    return job


def run_here(copy: Path, job: dict[str, Any] | None = None) -> Run:
    """Run an example's job on the Ray that is up, whose CPUs must do for any number of pools."""
    job = copies.deepcopy(job) if job else job_of(copy)
    for step in job["spec"].get("steps", []):
        if "model" in step or "replicas" in step or step.get("resources"):
            step["resources"] = {**step.get("resources", {}), "cpu": 0.25}
    parsed: BatchInference = with_absolute_paths(parse(job), copy)
    return run_job(parsed, plan_for_machine(parsed.spec, gpus=0))


def module_of(name: str, module: str) -> ModuleType:
    """A module that lies beside an example's job; no two examples have one of the same name."""
    _find_modules_of(name)
    return importlib.import_module(module)


def _find_modules_of(name: str) -> None:
    path = str(EXAMPLES / name)
    if path not in sys.path:
        sys.path.insert(0, path)


def directories_of_modules() -> list[str]:
    """Where examples have modules of their own."""
    own = (path.parent for path in EXAMPLES.glob("*/*.py") if path.name != "prepare.py")
    return sorted({str(path) for path in own})
