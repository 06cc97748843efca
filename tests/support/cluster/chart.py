"""The chart, rendered by Helm."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.cluster.deployment import CHART
from support.engines import missing, program

Object = dict[str, Any]

NAMESPACE = "system"
RELEASE = "batchinference"
WITH_CRDS: Object = {"crds": {}}
"""The default values. They mention the CustomResourceDefinitions (see `without_crds`)."""


class _Strict(yaml.CSafeLoader):
    """Refuses a key that a mapping has twice, like kustomize."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Object:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is repeated in line {node.start_mark.line}"
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Chart:
    """A chart in a directory."""

    path: Path

    def render(self, values: Object | None = None, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run `helm template`. The chart does not change, so each call is made once."""
        return _rendered(self.path, yaml.safe_dump(values or {}), flags)

    def render_again(self) -> list[Object]:
        """Render the defaults without the cache."""
        _rendered.cache_clear()
        return self.manifests()

    def manifests(self, values: Object | None = None, *flags: str) -> list[Object]:
        """Return the objects that these values render to, as `without_crds` limits them."""
        done = self.render(without_crds(values or {}), *flags)
        assert done.returncode == 0, done.stderr
        return [result for result in yaml.load_all(done.stdout, _Strict) if result]

    def refusal(self, values: Object) -> str:
        """Return Helm's error message for invalid values."""
        done = self.render(without_crds(values))
        assert done.returncode != 0, f"these values were accepted: {values}"
        return done.stderr


@cache
def _rendered(path: Path, values: str, flags: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = ["helm", "template", RELEASE, str(path), "--namespace", NAMESPACE, *flags]
    return subprocess.run(
        [*command, "--values", "-"], input=values, capture_output=True, text=True, check=False
    )


def without_crds(values: Object) -> Object:
    """Disable the CustomResourceDefinitions, unless the values mention them. Helm needs most of its
    time for them."""
    return {"crds": {"enabled": False}, **values}


def one(manifests: list[Object], kind: str) -> Object:
    """Return the only object of a kind."""
    result = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(result) == 1, [manifest["kind"] for manifest in manifests]
    return result[0]


def defaults_map(manifests: list[Object]) -> Object:
    """Return the ConfigMap with the defaults of jobs."""
    maps = [manifest for manifest in manifests if manifest["kind"] == "ConfigMap"]
    (each,) = (each for each in maps if "defaults.yaml" in each.get("data", {}))
    return each


def container(manifests: list[Object]) -> Object:
    """Return the operator's container."""
    containers: list[Object] = one(manifests, "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    return containers[0]


def chart_with_dependencies() -> Chart:
    """Return the chart with its dependency KubeRay, or skip."""
    _helm()
    kuberay_archive()
    return Chart(CHART)


def chart_without_dependencies(directory: Path) -> Chart:
    """Copy the chart without its dependency: Helm refuses to render while one is missing, even a
    disabled one."""
    _helm()
    path = directory / CHART.name
    shutil.copytree(CHART, path, ignore=shutil.ignore_patterns("charts", "Chart.lock"))
    about = yaml.safe_load((path / "Chart.yaml").read_text())
    del about["dependencies"]
    (path / "Chart.yaml").write_text(yaml.safe_dump(about))
    return Chart(path)


def kuberay_archive() -> Path:
    """Return the archive of KubeRay's chart, or skip."""
    dependency = yaml.safe_load((CHART / "Chart.yaml").read_text())["dependencies"][0]
    archive = CHART / "charts" / f"{dependency['name']}-{dependency['version']}.tgz"
    if not archive.exists():
        missing("the KubeRay chart", "run `helm dependency update charts/batch-inference-operator`")
    return archive


def kuberay_definition(plural: str) -> Object:
    """Return KubeRay's definition of a resource from its chart, or skip."""
    with tarfile.open(kuberay_archive()) as archive:
        for member in archive:
            content = archive.extractfile(member)
            text = content.read() if content else b""
            if "/crds/" in member.name and f"\n  name: {plural}.ray.io\n".encode() in text:
                body: Object = yaml.load(text, yaml.CSafeLoader)
                return body
    raise AssertionError(f"KubeRay's chart has no definition of {plural}")


def _helm() -> None:
    program("helm", "https://helm.sh/docs/intro/install/")
