"""KubeRay is installed with the release only if it is enabled."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import yaml

from support.cluster.chart import Chart
from support.cluster.deployment import CHART

Object = dict[str, Any]

ENABLED = {"kuberay": {"enabled": True}}


def deployments(manifests: list[Object]) -> list[str]:
    return [m["metadata"]["name"] for m in manifests if m["kind"] == "Deployment"]


def test_kuberay_is_disabled_by_default(with_kuberay: Chart) -> None:
    assert deployments(with_kuberay.manifests()) == ["batchinference-batch-inference-operator"]


def test_kuberay_can_be_enabled(with_kuberay: Chart) -> None:
    result = deployments(with_kuberay.manifests(ENABLED))
    assert len(result) == 2
    assert any("kuberay" in name for name in result)


def test_kuberay_includes_its_crds(with_kuberay: Chart) -> None:
    manifests = with_kuberay.manifests(ENABLED, "--include-crds")
    definitions = {
        m["metadata"]["name"] for m in manifests if m["kind"] == "CustomResourceDefinition"
    }
    assert {"rayjobs.ray.io", "rayclusters.ray.io"} <= definitions


def test_kuberay_does_not_change_the_operator(with_kuberay: Chart, chart: Chart) -> None:
    named = {(m["kind"], m["metadata"]["name"]): m for m in with_kuberay.manifests(ENABLED)}
    for manifest in chart.manifests():
        if manifest["kind"] != "Secret":  # its key is random
            assert named[manifest["kind"], manifest["metadata"]["name"]] == manifest


def test_lock_file_matches_the_dependencies() -> None:
    """`helm dependency build` compares this digest and refuses an outdated lock file."""
    files = ("Chart.yaml", "Chart.lock")
    about, lock = (yaml.safe_load((CHART / name).read_text()) for name in files)
    fields = ("name", "version", "repository", "condition")
    asked, locked = (
        [{name: one[name] for name in fields if name in one} for one in result["dependencies"]]
        for result in (about, lock)
    )
    assert locked == [{k: v for k, v in one.items() if k != "condition"} for one in asked]
    text = json.dumps([asked, locked], separators=(",", ":"))
    assert lock["digest"] == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
