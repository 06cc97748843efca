"""The notes that Helm prints after an installation."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.cluster.chart import Chart


def notes(chart: Chart, directory: Path, *flags: str) -> str:
    """Return the notes. Without a kubeconfig, Helm cannot reach a cluster."""
    command = ["helm", "install", "release", str(chart.path), "--dry-run=client", *flags]
    environment = {**os.environ, "KUBECONFIG": str(directory / "none")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\nNOTES:\n", 1)[1]


def test_notes_of_all_namespaces_without_kuberay(chart: Chart, tmp_path: Path) -> None:
    text = notes(chart, tmp_path)
    assert "watches all namespaces" in text
    assert "in any of these namespaces except default, which is the operator's namespace" in text
    assert "kubectl apply -f job.yaml" in text
    assert "kubectl wait --for=jsonpath='{.status.completionTime}'" in text
    assert "KubeRay must already be installed" in text


def test_notes_name_watched_namespaces(chart: Chart, tmp_path: Path) -> None:
    text = notes(chart, tmp_path, "--set", "watchNamespaces={team-a,team-b}")
    assert "watches the namespaces team-a, team-b" in text


def test_notes_do_not_ask_for_an_installed_kuberay(with_kuberay: Chart, tmp_path: Path) -> None:
    assert "KubeRay must" not in notes(with_kuberay, tmp_path, "--set", "kuberay.enabled=true")
