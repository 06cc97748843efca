"""The CustomResourceDefinition in the API server and in kubectl."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster.deployment import CHART, ROOT
from support.documents.minimal import document
from support.documents.yaml_files import read_yaml
from support.engines import kubebuilder_assets, program
from support.servers.api_server import ApiServer, Namespace

Object = dict[str, Any]

CRD = read_yaml(CHART / "files" / "crd.yaml")
PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD['metadata']['name']}"


@pytest.fixture
def kubectl(server: ApiServer, namespace: Namespace, tmp_path: Path) -> Any:
    """Return a function that runs kubectl in the test's namespace."""
    installed = str(kubebuilder_assets() / "kubectl")
    kubectl = shutil.which(installed) or program(
        "kubectl", "https://kubernetes.io/docs/tasks/tools/"
    )
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")

    def run(*arguments: str) -> str:
        command = [kubectl, "--namespace", namespace.name, *arguments]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_server_stores_each_part_of_the_schema(server: ApiServer) -> None:
    (version,) = server.get(PATH)["spec"]["versions"]
    assert version["schema"] == CRD["spec"]["versions"][0]["schema"]


def condition(kind: str, status: str, message: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": "Word",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }


STATUS = {
    "phase": "Running",
    "observedGeneration": 1,
    "conditions": [
        condition("Ready", "False", "rows are being processed"),
        condition("Complete", "True", "done"),
    ],
    "progress": {"rows": 410, "total": 1000, "percent": 41, "rowsPerSecond": 12.5, "eta": "47s"},
    "counts": {"read": 410, "written": 407, "failed": 3, "filtered": 0},
    "attempt": 2,
    "devices": 8,
    "cost": {"amount": "3.25", "currency": "EUR"},
    "rayJobName": "shown-1",
}


def test_kubectl_shows_and_waits_for_the_status(namespace: Namespace, kubectl: Any) -> None:
    namespace.create(document("shown"))
    _, row = kubectl("get", "batchinferences").splitlines()
    assert row.split()[0] == "shown"  # a job without a status
    namespace.patch_status("BatchInference", "shown", STATUS)
    header, row = kubectl("get", "bi").splitlines()
    columns = "NAME PHASE REASON PROGRESS ROWS FAILED ROWSPERSECOND ETA ATTEMPTS AGE"
    assert header.split() == columns.split()
    *shown, age = row.split()
    assert shown == ["shown", "Running", "Word", "41", "410", "3", "12.5", "47s", "2"]
    assert age.endswith("s")
    header, row = kubectl("get", "all", "--output", "wide").splitlines()
    assert header.split()[-3:] == ["COST", "RAYJOB", "MESSAGE"]
    assert row.split()[10:14] == ["8", "0", "3.25", "shown-1"]
    assert row.endswith("rows are being processed")
    namespace.create(document("other"))
    selected = ["get", "bi", "--output", "name", "--field-selector"]
    names = [kubectl(*selected, f"status.phase{operator}Running") for operator in ("=", "!=")]
    assert [name.strip().rpartition("/")[2] for name in names] == ["shown", "other"]
    kubectl("wait", "--for=condition=Complete", "batchinference/shown", "--timeout=60s")


def test_kubectl_sorts_jobs_by_fields_of_the_status(namespace: Namespace, kubectl: Any) -> None:
    """The first job has no status. The other jobs have increasingly large values."""
    names = ["c", "b", "a"]
    for number, name in enumerate(names):
        namespace.create(document(name))
        status = {
            **STATUS,
            "phase": ["Failed", "Running", "Succeeded"][number],
            "conditions": [{**condition("Ready", "False", ""), "reason": f"Word{number}"}],
            "progress": {"rows": number, "percent": number},
            "startTime": f"2026-01-01T00:00:0{number}Z",
            "deviceSeconds": number,
        }
        if number:
            namespace.patch_status("BatchInference", name, status)
    page = (ROOT / "docs" / "cluster.md").read_text()
    documented = re.findall(r"--sort-by=(\S+)`", page)
    assert documented
    for path in (*documented, ".status.startTime", ".status.progress.percent", ".status.phase"):
        rows = kubectl("get", "bi", f"--sort-by={path}", "--no-headers").splitlines()
        assert [row.split()[0] for row in rows] == names, path


def test_kubectl_explains_the_fields(kubectl: Any) -> None:
    assert "The format of the files" in kubectl("explain", "bi.spec.read.format")
    explained = kubectl("explain", "bi.spec.steps.batchSize")
    assert "runs out of memory" in " ".join(explained.split())


def test_kubectl_applies_the_same_file_again(
    namespace: Namespace, kubectl: Any, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document("again")))
    assert "created" in kubectl("apply", "--filename", str(file))
    assert "unchanged" in kubectl("apply", "--filename", str(file))
    assert "serverside-applied" in kubectl(
        "apply", "--server-side", "--force-conflicts", "--filename", str(file)
    )
    assert namespace.get("BatchInference", "again")["metadata"]["generation"] == 1
