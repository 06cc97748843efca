"""The chart, rendered by Helm."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.deployment import CHART
from support.engines import missing, program

Object = dict[str, Any]

NAMESPACE = "system"
RELEASE = "batchinference"


@dataclass(frozen=True)
class Chart:
    """A chart in a directory of its own. `name` in the API is the release's unless it is given."""

    path: Path

    def render(self, values: Object | None = None, *flags: str) -> subprocess.CompletedProcess[str]:
        command = ["helm", "template", RELEASE, str(self.path), "--namespace", NAMESPACE, *flags]
        return subprocess.run(
            [*command, "--values", "-"],
            input=yaml.safe_dump(values or {}),
            capture_output=True,
            text=True,
            check=False,
        )

    def manifests(self, values: Object | None = None, *flags: str) -> list[Object]:
        """All objects that these values give."""
        done = self.render(values, *flags)
        assert done.returncode == 0, done.stderr
        return [found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found]

    def refusal(self, values: Object) -> str:
        """What Helm says against these values."""
        done = self.render(values)
        assert done.returncode != 0, f"these values were taken: {values}"
        return done.stderr


def one(manifests: list[Object], kind: str) -> Object:
    """The one object of a kind."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(found) == 1, [manifest["kind"] for manifest in manifests]
    return found[0]


def container(manifests: list[Object]) -> Object:
    """The operator's container."""
    containers: list[Object] = one(manifests, "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    return containers[0]


def whole_chart() -> Chart:
    """The chart with KubeRay's in it, or a skip."""
    _helm()
    kuberay_archive()
    return Chart(CHART)


def own_chart(directory: Path) -> Chart:
    """The chart without KubeRay's: Helm renders nothing while a dependency is not there, not even
    one that is switched off."""
    _helm()
    path = directory / CHART.name
    shutil.copytree(CHART, path, ignore=shutil.ignore_patterns("charts", "Chart.lock"))
    about = yaml.safe_load((path / "Chart.yaml").read_text())
    del about["dependencies"]
    (path / "Chart.yaml").write_text(yaml.safe_dump(about))
    return Chart(path)


def kuberay_archive() -> Path:
    """The archive of KubeRay's chart, or a skip."""
    dependency = yaml.safe_load((CHART / "Chart.yaml").read_text())["dependencies"][0]
    archive = CHART / "charts" / f"{dependency['name']}-{dependency['version']}.tgz"
    if not archive.exists():
        missing("the KubeRay chart", "run `helm dependency update charts/batch-inference-operator`")
    return archive


def kuberay_definition(plural: str) -> Object:
    """KubeRay's definition of a resource, from its chart; or a skip."""
    with tarfile.open(kuberay_archive()) as archive:
        for member in archive:
            content = archive.extractfile(member)
            text = content.read() if content else b""
            if "/crds/" in member.name and f"\n  name: {plural}.ray.io\n".encode() in text:
                found: Object = yaml.load(text, yaml.CSafeLoader)
                return found
    raise AssertionError(f"KubeRay's chart has no definition of {plural}")


def _helm() -> None:
    program("helm", "https://helm.sh/docs/intro/install/")
