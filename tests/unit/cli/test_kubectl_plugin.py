"""`kubectl bi`: the plugin of kubectl is the same program as `batchinference`."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from support.documents.minimal import document
from support.documents.pages import ROOT
from support.engines import program
from support.program import WriteJob

PLUGIN = Path(sys.executable).parent / "kubectl-bi"
"""kubectl runs the program with this name in PATH for `kubectl bi`."""


def run(*command: str | Path) -> tuple[int, str, str]:
    path = f"{PLUGIN.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_entry_points_are_the_same_function() -> None:
    scripts = tomllib.loads((ROOT / "jobs/pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == dict.fromkeys(("batchinference", PLUGIN.name), "batchinference.start:main")
    module, _, name = scripts[PLUGIN.name].partition(":")
    assert callable(getattr(import_module(module), name))


def test_kubectl_finds_the_plugin(write_job: WriteJob) -> None:
    kubectl = program("kubectl", "install it from https://kubernetes.io/docs/tasks/tools")
    write_job(document("mine"))
    assert run(kubectl, "bi", "validate", "--fields-only", "job.yaml") == (
        0,
        "job.yaml: mine is valid\n",
        "",
    )
