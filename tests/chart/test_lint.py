"""The chart is valid for Helm, and for the oldest and the newest version of Kubernetes."""

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
def test_objects_are_valid_in_oldest_and_newest_kubernetes(chart: Chart, values: Object) -> None:
    for version in (OLDEST, all_versions()[-1]):
        for manifest in chart.manifests(values, "--kube-version", version):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_older_kubernetes_is_refused(chart: Chart) -> None:
    done = chart.render({}, "--kube-version", "1.28.15")
    assert done.returncode != 0
    assert "incompatible with Kubernetes v1.28.15" in done.stderr


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_objects_have_unique_names_and_the_labels_of_the_release(
    chart: Chart, values: Object
) -> None:
    manifests = chart.manifests(values, "--kube-version", OLDEST)
    names = [
        (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
        for found in manifests
    ]
    assert len(names) == len(set(names))
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "batchinference"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"] == f"{ABOUT['name']}-{ABOUT['version']}"
        assert all(len(value) <= 63 for value in labels.values())
