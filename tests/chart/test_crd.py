"""The CRDs are installed with the release and kept after an uninstall."""

from __future__ import annotations

from typing import Any

import yaml

from support.cluster.chart import WITH_CRDS, Chart
from support.cluster.deployment import CHART

Object = dict[str, Any]

KEPT = {"helm.sh/resource-policy": "keep"}


def definitions(manifests: list[Object]) -> list[Object]:
    return [manifest for manifest in manifests if manifest["kind"] == "CustomResourceDefinition"]


def test_crds_equal_the_generated_files(chart: Chart) -> None:
    for installed, file in zip(
        definitions(chart.manifests(WITH_CRDS)), ("crd.yaml", "schedule-crd.yaml"), strict=True
    ):
        generated = yaml.safe_load((CHART / "files" / file).read_text())
        assert installed["spec"] == generated["spec"]
        assert installed["metadata"]["name"] == generated["metadata"]["name"]


def test_selectable_fields_need_kubernetes_1_31(chart: Chart) -> None:
    """Helm refuses fields that the API server does not know."""
    versions = {"1.30.4": False, "1.31.0": True}
    for version, expected in versions.items():
        crd, _ = definitions(chart.manifests(WITH_CRDS, "--kube-version", version))
        assert [("selectableFields" in each) for each in crd["spec"]["versions"]] == [expected]


def test_crds_are_kept_by_default(chart: Chart) -> None:
    for crd in definitions(chart.manifests(WITH_CRDS)):
        assert crd["metadata"]["annotations"] == KEPT
    for crd in definitions(chart.manifests({"crds": {"keep": False}})):
        assert "annotations" not in crd["metadata"]


def test_kept_objects_are_the_crds_and_the_token_key(chart: Chart) -> None:
    def kept(values: Object) -> list[str]:
        manifests = chart.manifests(values)
        notes = [(m["kind"], m["metadata"].get("annotations", {})) for m in manifests]
        return sorted(kind for kind, each in notes if each.items() >= KEPT.items())

    assert kept(WITH_CRDS) == ["CustomResourceDefinition", "CustomResourceDefinition", "Secret"]
    assert kept({"crds": {"keep": False}}) == []
