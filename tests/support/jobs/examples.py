"""Runs the examples from copies."""

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

from batchinference.api.job_files import with_absolute_paths
from batchinference.plan import plan_for_machine
from batchinference.spec import BatchInference, parse
from batchinference.spec.report import Report
from support.documents.pages import ROOT
from support.jobs.on_ray import Run, run_job
from support.jobs.without_ray import run_without_ray

EXAMPLES = ROOT / "examples"
MADE = ("data", "model", "encoder", "out", "__pycache__")


def prepared(name: str, directory: Path) -> Path:
    """Copy an example, and create its input in this process, which has its libraries loaded."""
    copy = directory / name
    shutil.copytree(EXAMPLES / name, copy, ignore=shutil.ignore_patterns(*MADE))
    _find_modules_of(name)
    runpy.run_path(str(copy / "prepare.py"), run_name="__main__")
    return copy


def job_of(copy: Path) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((copy / "job.yaml").read_text())
    return job


def run_example(copy: Path, job: dict[str, Any] | None = None) -> Report:
    """Run an example's job without Ray."""
    parsed = with_absolute_paths(parse(job or job_of(copy)), copy)
    return run_without_ray(parsed, rows_per_task=200)


def run_example_on_ray(copy: Path, job: dict[str, Any] | None = None) -> Run:
    """Run an example's job on the session's Ray, whose CPUs must be enough for all actor pools."""
    job = copies.deepcopy(job) if job else job_of(copy)
    for step in job["spec"].get("steps", []):
        if "model" in step or "replicas" in step or step.get("resources"):
            step["resources"] = {**step.get("resources", {}), "cpu": 0.25}
    parsed: BatchInference = with_absolute_paths(parse(job), copy)
    return run_job(parsed, plan_for_machine(parsed.spec, gpus=0))


def module_of(name: str, module: str) -> ModuleType:
    """Import a module of an example. No two examples have modules of the same name."""
    _find_modules_of(name)
    return importlib.import_module(module)


def _find_modules_of(name: str) -> None:
    path = str(EXAMPLES / name)
    if path not in sys.path:
        sys.path.insert(0, path)
