"""`batchinference doctor`: its findings about a job's storage, and about versions."""

from __future__ import annotations

import json
import re
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from batchinference.cli import doctor, doctor_cluster
from batchinference.cli.doctor_cluster import (
    check_fields,
    check_image,
    check_kuberay,
    check_local_ray,
    check_operator,
    fields_of,
    tag_of,
    version_of,
)
from batchinference.cli.doctor_finding import Finding, Result
from batchinference.packages import EXTRAS
from generators.crds import custom_resource_definition
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.pages import ROOT
from support.program import Invoke, WriteJob

SCHEMA = {
    "properties": {
        "spec": {
            "properties": {
                "steps": {"type": "array", "items": {"properties": {"name": {"type": "string"}}}},
                "env": {"additionalProperties": {"properties": {"value": {}}}},
            }
        }
    }
}


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "version"),
    [("v1.6.2", (1, 6)), ("0.1.0", (0, 1)), ("2.60.0-py311-gpu", (2, 60)), ("dev", None)],
)
def test_version_is_found_in_a_text(text: str, version: tuple[int, int] | None) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("quay.io/kuberay/operator:v1.6.2", "v1.6.2"),
        ("localhost:5000/batchinference/pipeline", ""),
        ("batchinference/pipeline:0.1.0@sha256:12.34", "0.1.0"),
    ],
)
def test_tag_of_an_image(image: str, tag: str) -> None:
    assert tag_of(image) == tag


@pytest.mark.parametrize(
    ("finding", "result", "advice"),
    [
        (check_operator("0.1.3", "0.1.0"), Result.OK, ""),
        (check_operator("", "0.1.0"), Result.OK, ""),
        (check_operator("0.2.0", "0.1.0"), Result.NOTE, "Install version 0.2.0 of this program"),
        (check_operator("0.1.0", "0.2.0"), Result.NOTE, "Upgrade the chart: docs/upgrades.md"),
        (check_kuberay("kuberay/operator:v1.6.2"), Result.OK, ""),
        (check_kuberay("kuberay/operator:v1.5.0"), Result.NOTE, "Jobs need KubeRay 1.6"),
        (check_kuberay("kuberay/operator:v1.7.0"), Result.OK, ""),
        (check_kuberay("kuberay/operator:v1.8.0"), Result.NOTE, "It is not tested. Tested"),
        (check_kuberay("kuberay/operator:v1.10.0"), Result.NOTE, "It is not tested. Tested"),
        (check_kuberay("kuberay/operator:nightly"), Result.NOTE, "It is not tested. Tested"),
        (check_image("a/pipeline:0.1.0", "0.1.2", "2.60.0"), Result.OK, ""),
        (check_image("a/pipeline:0.2.0", "0.1.2", "2.60.0"), Result.NOTE, "Make sure that it"),
        (check_image("a/mine:latest", "0.1.2", "2.60.0"), Result.NOTE, "Make sure that it"),
        (check_local_ray("2.60.1", "2.60.0"), Result.OK, ""),
        (check_local_ray("2.59.0", "2.60.0"), Result.NOTE, "Install ray==2.60.0"),
    ],
)
def test_versions_are_compared(finding: Finding, result: Result, advice: str) -> None:
    assert (finding.result, finding.advice[: len(advice)]) == (result, advice)
    assert bool(finding.advice) == bool(advice)


def test_definitions_are_compared_by_their_fields(messages: Messages) -> None:
    paths = ["spec", "spec.steps", "spec.steps[].name", "spec.env", "spec.env.*.value"]
    assert list(fields_of(SCHEMA)) == paths
    older = deepcopy(SCHEMA)
    del older["properties"]["spec"]["properties"]["env"]
    assert check_fields(SCHEMA, SCHEMA).result is Result.OK
    fields = check_fields(older, SCHEMA)
    assert (fields.result, fields.found) == (Result.NOTE, "the cluster does not know spec.env")
    messages.check(fields.advice)
    newer = check_fields(SCHEMA, older)
    assert (newer.result, newer.found) == (Result.NOTE, "this program does not know spec.env")


class Cluster:
    """A cluster that answers requests from a table."""

    host, namespace = "https://cluster", "team"

    def __init__(self, *_: Any) -> None:
        (version,) = custom_resource_definition()["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        self._schemas = {"dev.batchinference.v1beta1.BatchInference": schema}

    def request(self, method: str, path: str) -> Any:
        assert method == "GET"
        if path.startswith("/openapi/"):
            return {"components": {"schemas": self._schemas}}
        if "batch-inference-operator" in path and "configmaps" not in path:
            about = {"namespace": "system", "name": "bi", "labels": {VERSION: "0.9.0"}}
            return {"items": [{"metadata": about, "status": {"readyReplicas": 2}}]}
        if "kuberay-operator" in path:
            containers = [{"image": "kuberay/operator:v1.5.0"}]
            return {"items": [{"spec": {"template": {"spec": {"containers": containers}}}}]}
        return {
            "/version": {"gitVersion": "v1.34.0"},
            "/apis/batchinference.dev/v1beta1": {"resources": [{"name": "batchinferences"}]},
            "/apis/ray.io/v1": {"resources": [{"name": "rayjobs"}]},
            "/api/v1/nodes": {"items": []},
            "/api/v1/namespaces/system/configmaps/bi-defaults": {
                "data": {"defaults.yaml": "image: batchinference/pipeline:0.9.0"}
            },
        }[path]


VERSION = "app.kubernetes.io/version"


@pytest.fixture
def on_cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    monkeypatch.setattr(doctor_cluster, "Kubernetes", Cluster)
    return {each.check: each for each in doctor_cluster.check_cluster(None, None, None)}


def test_versions_of_the_cluster_are_checked(on_cluster: dict[str, Finding]) -> None:
    results = {check: finding.result for check, finding in on_cluster.items()}
    assert results["CRD version"] is Result.OK
    assert results["operator"] is Result.OK
    assert results["operator version"] is Result.NOTE
    assert on_cluster["image of jobs"].found == "batchinference/pipeline:0.9.0, with Ray 2.60.0"
    assert "Upgrade it: docs/upgrades.md#kuberay" in on_cluster["KubeRay"].advice


def test_image_of_the_job_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cluster, "Kubernetes", Cluster)
    result = {each.check: each for each in doctor_cluster.check_cluster(None, None, "my/own:1.0")}
    assert result["image of jobs"].result is Result.NOTE
    assert result["image of jobs"].found.startswith("my/own:1.0; ")


def test_problem_of_the_job_is_reported(
    invoke: Invoke, write_job: WriteJob, no_cluster: None
) -> None:
    done = invoke("doctor", write_job(document(write={})), "-o", "json")
    assert done.exit_code == 1
    (each,) = (each for each in json.loads(done.stdout) if each["check"] == "job file")
    assert each["result"] == "failed"
    assert each["found"].startswith("job.yaml: spec.write.format: required, but missing.")


def test_quiet_doctor_shows_only_what_is_missing(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, no_cluster: None
) -> None:
    findings = [Finding("a", Result.OK, "fine"), Finding("b", Result.NOTE, "odd", "Fix it")]
    monkeypatch.setattr(doctor, "_check_machine", lambda: findings)
    monkeypatch.setattr(doctor, "check_cluster", lambda *_: [])
    assert invoke("doctor").stdout.splitlines() == [
        "RESULT  CHECK  FOUND",
        "ok      a      fine",
        "note    b      odd. Fix it",
    ]
    assert invoke("doctor", "-q").stdout.splitlines()[1:] == ["note    b      odd. Fix it"]
    monkeypatch.setattr(doctor, "_check_machine", lambda: findings[:1])
    assert invoke("doctor", "-q").stdout == ""


@pytest.mark.parametrize(
    ("name", "extra", "result"),
    [
        ("pydantic", "pipeline", Result.OK),
        ("no-such-package", "pipeline", Result.FAILED),
        ("no-such-package", "vision", Result.NOTE),
    ],
)
def test_missing_packages_of_the_pipeline_fail(name: str, extra: str, result: Result) -> None:
    package = doctor._package(name, extra)
    assert package.result is result
    assert result is Result.OK or f"'./jobs[{extra}]'" in package.advice


def test_extras_have_the_packages() -> None:
    project = tomllib.loads((ROOT / "jobs" / "pyproject.toml").read_text())["project"]
    installed = {
        re.split(r"[\[<>=]", requirement)[0]: extra
        for extra, requirements in project["optional-dependencies"].items()
        for requirement in requirements
    }
    assert {name: installed.get(name) for name in EXTRAS} == EXTRAS
