"""The definition comes with the release, and stays when the release goes."""

from __future__ import annotations

import yaml

from support.cluster.chart import Chart, one
from support.cluster.deployment import CHART

KEPT = {"helm.sh/resource-policy": "keep"}


def test_the_definition_is_the_one_that_is_generated(chart: Chart) -> None:
    generated = yaml.safe_load((CHART / "files" / "crd.yaml").read_text())
    installed = one(chart.manifests(), "CustomResourceDefinition")
    assert installed["spec"] == generated["spec"]
    assert installed["metadata"]["name"] == generated["metadata"]["name"]


def test_definition_is_kept_by_default(chart: Chart) -> None:
    metadata = one(chart.manifests(), "CustomResourceDefinition")["metadata"]
    assert metadata["annotations"] == KEPT
    manifests = chart.manifests({"crds": {"keep": False}})
    assert "annotations" not in one(manifests, "CustomResourceDefinition")["metadata"]


def test_definition_can_be_disabled(chart: Chart) -> None:
    kinds = {manifest["kind"] for manifest in chart.manifests({"crds": {"enabled": False}})}
    assert "CustomResourceDefinition" not in kinds


def test_nothing_else_is_kept(chart: Chart) -> None:
    kept = [m["kind"] for m in chart.manifests() if "annotations" in m["metadata"]]
    assert sorted(kept) == ["CustomResourceDefinition", "Secret"]


def test_the_token_key_is_kept_with_the_jobs_only(chart: Chart) -> None:
    kept = [m for m in chart.manifests({"crds": {"keep": False}}) if "annotations" in m["metadata"]]
    assert kept == []
