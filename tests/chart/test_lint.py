"""The chart is valid for Helm, and for the oldest and the newest version of Kubernetes."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from chart.value_sets import SETS
from support.cluster.chart import WITH_CRDS, Chart
from support.cluster.deployment import CHART, ROOT
from support.documents.yaml_files import read_yaml

ABOUT = read_yaml(CHART / "Chart.yaml")
OLDEST = re.search(r"1\.\d+\.0", ABOUT["kubeVersion"]).group()  # type: ignore[union-attr]

VALIDATED = ("default", "everything", "existing objects", "long name", "empty extras")
"""The sets that are also validated for other versions than the version of the API server."""


def lint(chart: Chart) -> str:
    done = subprocess.run(
        ["helm", "lint", "--strict", str(chart.path)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_helm_lint_passes(chart: Chart, with_kuberay: Chart) -> None:
    assert (lint(chart), lint(with_kuberay)) == ("", "")


@pytest.mark.parametrize("values", VALIDATED)
def test_objects_are_valid_in_oldest_and_newest_kubernetes(chart: Chart, values: str) -> None:
    given = WITH_CRDS if values == "default" else SETS[values]
    for version in (OLDEST, all_versions()[-1]):
        for manifest in chart.manifests(given, "--kube-version", version):
            if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
                kubernetes_validate.validate(manifest, version, strict=True)


def test_older_kubernetes_is_refused(chart: Chart) -> None:
    done = chart.render({}, "--kube-version", "1.28.15")
    assert done.returncode != 0
    assert "incompatible with Kubernetes v1.28.15" in done.stderr


def test_chart_names_its_images_and_its_resources() -> None:
    """Artifact Hub shows these annotations."""
    notes = {name.partition("/")[2]: text for name, text in ABOUT["annotations"].items()}
    images = {each["name"]: each["image"] for each in yaml.safe_load(notes["images"])}
    version = ABOUT["appVersion"]
    assert images == {name: f"batchinference/{name}:{version}" for name in ("operator", "pipeline")}
    shown = {(each["name"], each["version"]) for each in yaml.safe_load(notes["crds"])}
    definitions = [read_yaml(file) for file in (CHART / "files").glob("*crd.yaml")]
    assert shown == {
        (each["metadata"]["name"], each["spec"]["versions"][0]["name"]) for each in definitions
    }


def test_readme_is_generated_from_the_values() -> None:
    readme = runpy.run_path(str(ROOT / "tools" / "chart_readme.py"))["readme"]
    assert (CHART / "README.md").read_text() == readme(CHART), "run `make generate`"


def test_value_without_a_description_is_refused(tmp_path: Path) -> None:
    shutil.copy(CHART / "Chart.yaml", tmp_path)
    (tmp_path / "values.yaml").write_text("# -- Described.\na: 1\nb:\n  # a remark\n  c: 2\n")
    readme = runpy.run_path(str(ROOT / "tools" / "chart_readme.py"))["readme"]
    with pytest.raises(ValueError, match=r"b\.c has no description"):
        readme(tmp_path)
