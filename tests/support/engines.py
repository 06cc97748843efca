"""Programs that a suite needs and that a machine may not have."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def missing(what: str, how_to_get_it: str) -> NoReturn:
    """Skip the test with a message that names the missing program and how to install it."""
    pytest.skip(f"{what} is missing: {how_to_get_it}")


def program(name: str, how_to_get_it: str) -> str:
    """Return the path of a program, or skip."""
    return shutil.which(name) or missing(name, how_to_get_it)


def kubebuilder_assets() -> Path:
    """Return the directory with kube-apiserver and etcd, or skip."""
    return _directory(
        "KUBEBUILDER_ASSETS",
        "kube-apiserver",
        "install setup-envtest (https://book.kubebuilder.io/reference/envtest) and run "
        "`export KUBEBUILDER_ASSETS=$(setup-envtest use 1.35 -p path)`",
    )


def prometheus_directory() -> Path:
    """Return the directory with prometheus and promtool, or skip."""
    return _directory(
        "PROMETHEUS",
        "prometheus",
        "unpack a release (https://prometheus.io/download) and run `export PROMETHEUS=DIRECTORY`",
    )


def _directory(variable: str, name: str, how_to_get_it: str) -> Path:
    """Return the directory that an environment variable names if it has the program, or skip."""
    directory = os.environ.get(variable, "")
    if directory and (Path(directory) / name).exists():
        return Path(directory)
    missing(name, how_to_get_it)
