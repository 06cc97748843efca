"""The chart is valid for Helm and for each supported version of Kubernetes."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from support.cluster.chart import Chart
from support.cluster.deployment import CHART

Object = dict[str, Any]

ABOUT = yaml.safe_load((CHART / "Chart.yaml").read_text())
OLDEST = re.search(r"1\.\d+\.0", ABOUT["kubeVersion"]).group()  # type: ignore[union-attr]
ALL_VERSIONS = list(dict.fromkeys(all_versions()))
"""Versions of Kubernetes that kubernetes-validate knows."""
VERSIONS = ALL_VERSIONS[ALL_VERSIONS.index(OLDEST) :]

EVERYTHING = {
    "nameOverride": "bi",
    "commonLabels": {"team": "vision"},
    "image": {"repository": "registry.example/operator", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "networkPolicy": {"enabled": True, "metricsFrom": [{"podSelector": {}}]},
    "watchNamespaces": ["a", "b"],
    "defaults": {"image": "registry.example/pipeline:1", "requests": {"cpu": 0.1}},
    "serviceAccount": {"annotations": {"example.com/role": "operator"}},
    "workers": 4,
    "logging": {"format": "plain", "level": "DEBUG"},
    "resources": {"limits": {"memory": "1Gi", "cpu": 1}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}]}
                ]
            }
        }
    },
    "priorityClassName": "system-cluster-critical",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
}
VALUES = {
    "default": {},
    "everything": EVERYTHING,
    "existing objects": {
        "crds": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "own"},
        "tokenKey": {"existingSecret": "own"},
    },
    "long name": {"fullnameOverride": "a" * 70},
    "empty extras": {"resources": {}, "livenessProbe": {}, "readinessProbe": {}},
}


def lint(chart: Chart) -> str:
    done = subprocess.run(
        ["helm", "lint", "--strict", str(chart.path)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_helm_lint_passes(chart: Chart, with_kuberay: Chart) -> None:
    assert (lint(chart), lint(with_kuberay)) == ("", "")


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_objects_are_valid_in_oldest_and_newest_kubernetes(
    chart: Chart, values: Object, version: str
) -> None:
    for manifest in chart.manifests(values):
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_valid_in_every_supported_kubernetes(chart: Chart, version: str) -> None:
    for manifest in chart.manifests(EVERYTHING, "--kube-version", version):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_older_kubernetes_is_refused(chart: Chart) -> None:
    done = chart.render({}, "--kube-version", "1.28.15")
    assert done.returncode != 0
    assert "incompatible with Kubernetes v1.28.15" in done.stderr


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_objects_have_unique_names(chart: Chart, values: Object) -> None:
    names = [
        (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
        for found in chart.manifests(values)
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_objects_have_the_labels_of_the_release(chart: Chart, values: Object) -> None:
    for manifest in chart.manifests(values):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "batchinference"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"] == f"{ABOUT['name']}-{ABOUT['version']}"
        assert all(len(value) <= 63 for value in labels.values())
