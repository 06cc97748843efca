"""The chart, installed by Helm into an API server."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.cluster.chart import RELEASE, Chart, without_crds
from support.servers.api_server import ApiServer, Refused, collection

Object = dict[str, Any]

_VERSIONS = {
    "Deployment": "apps/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "BatchInference": "batchinference.dev/v1beta1",
}
_WITHOUT_SCHEMAS = "--disable-openapi-validation"
"""To validate the objects, Helm would get the schemas of all definitions, which the API server
takes a second to build. test_value_sets.py lets the server validate the objects."""


def _fast(values: Object) -> Object:
    """Disable what the API server takes a second to compile, unless the values mention it."""
    return {"admissionPolicy": {"enabled": False}, **without_crds(values)}


@dataclass(frozen=True)
class Release:
    """A release in a namespace of its own, without CustomResourceDefinitions and admission policies
    unless the values mention them.

    Helm's errors raise AssertionError."""

    chart: Chart
    server: ApiServer
    kubeconfig: Path
    namespace: str

    def install(self, **values: Any) -> str:
        arguments = (
            "install",
            RELEASE,
            str(self.chart.path),
            "--create-namespace",
            _WITHOUT_SCHEMAS,
            "--values",
            "-",
        )
        return self.helm(*arguments, values=_fast(values))

    def upgrade(self, **values: Any) -> str:
        arguments = ("upgrade", RELEASE, str(self.chart.path), _WITHOUT_SCHEMAS, "--values", "-")
        return self.helm(*arguments, values=_fast(values))

    def uninstall(self) -> str:
        return self.helm("uninstall", RELEASE)

    def helm(self, *arguments: str, values: Object | None = None) -> str:
        done = subprocess.run(
            ["helm", *arguments, "--namespace", self.namespace],
            input=yaml.safe_dump(values or {}),
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str, name: str, namespace: str = "") -> Any:
        path = collection(_VERSIONS.get(kind, "v1"), kind, namespace or self.namespace)
        return self.server.get(f"{path}/{name}")

    def has(self, kind: str, name: str, namespace: str = "") -> bool:
        try:
            return bool(self.get(kind, name, namespace))
        except Refused as refusal:
            if refusal.code != 404:
                raise
            return False
