"""What Helm prints after an installation: what is watched, and what to do next."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.chart import Chart

Object = dict[str, Any]


def notes(chart: Chart, directory: Path, *flags: str) -> str:
    """Without a cluster: a kubeconfig that does not exist keeps Helm from one."""
    command = ["helm", "install", "release", str(chart.path), "--dry-run=client", *flags]
    environment = {**os.environ, "KUBECONFIG": str(directory / "none")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\nNOTES:\n", 1)[1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "watches all namespaces"),
        (["--set", "watchNamespaces={team-a,team-b}"], "watches the namespaces team-a, team-b"),
    ],
    ids=["all", "some"],
)
def test_they_say_where_jobs_are_run(
    chart: Chart, tmp_path: Path, flags: list[str], words: str
) -> None:
    assert words in notes(chart, tmp_path, *flags)


def test_they_say_what_to_do_next(chart: Chart, tmp_path: Path) -> None:
    text = notes(chart, tmp_path)
    assert "kubectl apply -f job.yaml" in text
    assert "kubectl wait --for=jsonpath='{.status.completionTime}'" in text


def test_they_say_that_kuberay_is_needed_where_it_is_not_installed(
    chart: Chart, tmp_path: Path
) -> None:
    assert "KubeRay is expected to run already" in notes(chart, tmp_path)


def test_they_do_not_ask_for_a_kuberay_that_is_installed(
    with_kuberay: Chart, tmp_path: Path
) -> None:
    assert "expected" not in notes(with_kuberay, tmp_path, "--set", "kuberay.enabled=true")
