"""The CRD is installed with the release and kept after an uninstall."""

from __future__ import annotations

from typing import Any

import yaml

from support.cluster.chart import Chart, one
from support.cluster.deployment import CHART

Object = dict[str, Any]

KEPT = {"helm.sh/resource-policy": "keep"}


def test_crd_equals_the_generated_file(chart: Chart) -> None:
    generated = yaml.safe_load((CHART / "files" / "crd.yaml").read_text())
    installed = one(chart.manifests(), "CustomResourceDefinition")
    assert installed["spec"] == generated["spec"]
    assert installed["metadata"]["name"] == generated["metadata"]["name"]


def test_selectable_fields_need_kubernetes_1_31(chart: Chart) -> None:
    """Helm refuses fields that the API server does not know."""
    versions = {"1.30.4": False, "1.31.0": True}
    for version, expected in versions.items():
        crd = one(chart.manifests({}, "--kube-version", version), "CustomResourceDefinition")
        assert [("selectableFields" in each) for each in crd["spec"]["versions"]] == [expected]


def test_crd_is_kept_by_default(chart: Chart) -> None:
    metadata = one(chart.manifests(), "CustomResourceDefinition")["metadata"]
    assert metadata["annotations"] == KEPT
    manifests = chart.manifests({"crds": {"keep": False}})
    assert "annotations" not in one(manifests, "CustomResourceDefinition")["metadata"]


def test_kept_objects_are_the_crd_and_the_token_key(chart: Chart) -> None:
    def kept(values: Object) -> list[str]:
        manifests = chart.manifests(values)
        notes = [(m["kind"], m["metadata"].get("annotations", {})) for m in manifests]
        return sorted(kind for kind, each in notes if each.items() >= KEPT.items())

    assert kept({}) == ["CustomResourceDefinition", "Secret"]
    assert kept({"crds": {"keep": False}}) == []
