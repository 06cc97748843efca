"""Installation, upgrade and uninstallation of a release, on a real API server."""

from __future__ import annotations

import base64
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cluster.chart import WITH_CRDS, Chart, one
from support.cluster.kubectl import eventually
from support.cluster.release import Release
from support.documents.minimal import document
from support.servers.api_server import Namespace, new_namespace

Object = dict[str, Any]

FULLNAME = "batchinference-batch-inference-operator"
KEY = f"{FULLNAME}-key"
CRD = "batchinferences.batchinference.dev"


def key(release: Release) -> bytes:
    return base64.b64decode(release.get("Secret", KEY)["data"]["key"])


def checksum(release: Release) -> str:
    template = release.get("Deployment", FULLNAME)["spec"]["template"]
    text: str = template["metadata"]["annotations"]["checksum/defaults"]
    return text


def create_job(release: Release) -> Namespace:
    """Create a job in its own namespace, and return the namespace."""
    namespace = new_namespace(release.server, f"{release.namespace}-jobs")
    path = "/apis/batchinference.dev/v1beta1/batchinferences"
    eventually("jobs are served", lambda: release.server.serves(path), 30, 0.05)
    namespace.create(document("job"))
    return namespace


def test_install_creates_objects_that_kubernetes_accepts(release: Release) -> None:
    values = {**WITH_CRDS, "admissionPolicy": {"enabled": True}}
    assert "STATUS: deployed" in release.install(**values)
    for kind, name in [
        ("Deployment", FULLNAME),
        ("ServiceAccount", FULLNAME),
        ("ConfigMap", f"{FULLNAME}-defaults"),
        ("Secret", KEY),
        ("ClusterRole", FULLNAME),
        ("ValidatingAdmissionPolicy", f"{FULLNAME}-policy"),
        ("CustomResourceDefinition", CRD),
        ("CustomResourceDefinition", "batchinferenceschedules.batchinference.dev"),
    ]:
        assert release.has(kind, name), kind
    assert len(key(release)) >= 32


def test_second_release_for_the_same_namespaces_is_refused(release: Release) -> None:
    """Two operators would work on the same jobs."""
    second = replace(release, namespace=f"{release.namespace}-second")
    own_names = {"fullnameOverride": "second"}
    text = f'ClusterRole "batch-inference-operator-all-namespaces".*"{release.namespace}"'
    marked = f'ConfigMap "batch-inference-operator".*"{release.namespace}"'
    release.install()
    with pytest.raises(AssertionError, match=text):
        second.install(**own_names)
    release.upgrade(watchNamespaces=["default"])
    with pytest.raises(AssertionError, match=marked):
        second.install(**own_names, watchNamespaces=["default"])
    watched = f"{release.namespace}/batchinference already watches namespace default"
    with pytest.raises(AssertionError, match=watched):
        second.install(**own_names)
    assert "deployed" in second.install(**own_names, watchNamespaces=["kube-public"])


def test_upgrade_restarts_the_operator_only_for_new_defaults(release: Release) -> None:
    """The tokens of running jobs are derived from the key, which therefore never changes."""
    release.install()
    before = key(release), checksum(release)
    release.upgrade(workers=32)
    assert (key(release), checksum(release)) == before
    deployed = release.get("Deployment", FULLNAME)
    with pytest.raises(AssertionError, match="/workers"):
        release.upgrade(workers=0)
    assert release.get("Deployment", FULLNAME) == deployed
    release.upgrade(defaults={"image": "registry.example/pipeline:2"})
    assert key(release) == before[0]
    assert checksum(release) != before[1]
    release.helm("rollback", "batchinference", "1")
    assert (key(release), checksum(release)) == before


def test_installations_have_different_keys(chart: Chart) -> None:
    made = [one(chart.render_again(), "Secret")["data"]["key"] for _ in range(2)]
    assert made[0] != made[1]


def test_existing_secret_is_used(release: Release) -> None:
    namespace = new_namespace(release.server, release.namespace)
    data = {"key": base64.b64encode(b"k" * 32).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own"}, "data": data}
    namespace.create(secret)
    release.install(tokenKey={"existingSecret": "own"})
    volumes = release.get("Deployment", FULLNAME)["spec"]["template"]["spec"]["volumes"]
    assert {"name": "key", "secret": {"secretName": "own", "defaultMode": 420}} in volumes
    assert not release.has("Secret", KEY)
    release.uninstall()
    assert release.has("Secret", "own")


@pytest.mark.long("release")
def test_upgrade_updates_the_crd(release: Release, tmp_path: Path) -> None:
    """Helm would not update a CRD in the folder `crds` of a chart."""
    older = Chart(tmp_path / "older")
    shutil.copytree(release.chart.path, older.path)
    definition = yaml.safe_load((older.path / "files" / "crd.yaml").read_text())
    columns = definition["spec"]["versions"][0].pop("additionalPrinterColumns")
    (older.path / "files" / "crd.yaml").write_text(yaml.safe_dump(definition))
    replace(release, chart=older).install(**WITH_CRDS)
    assert columns_of(release) != columns
    release.upgrade(**WITH_CRDS)
    assert columns_of(release) == columns


def columns_of(release: Release) -> list[Object]:
    (version,) = release.get("CustomResourceDefinition", CRD)["spec"]["versions"]
    bodies: list[Object] = version.get("additionalPrinterColumns", [])
    return bodies


@pytest.mark.long("release")
def test_jobs_the_crd_and_the_key_outlive_the_release(release: Release) -> None:
    release.install(**WITH_CRDS)
    namespace = create_job(release)
    release.uninstall()
    assert not release.has("Deployment", FULLNAME)
    assert not release.has("ClusterRole", FULLNAME)
    assert remaining(release, "configmaps") == remaining(release, "serviceaccounts") == []
    (kept,) = remaining(release, "secrets")
    assert namespace.find("BatchInference", "job")
    release.install(**WITH_CRDS)
    assert remaining(release, "secrets")[0]["data"] == kept["data"]
    assert namespace.find("BatchInference", "job")
    release.upgrade()
    assert namespace.find("BatchInference", "job")


@pytest.mark.long("release")
def test_uninstall_deletes_all_objects_if_none_is_kept(release: Release) -> None:
    release.install(crds={"keep": False})
    create_job(release)
    release.uninstall()
    for plural in ("secrets", "configmaps", "serviceaccounts"):
        assert remaining(release, plural) == []
    gone = "the definition is gone"
    eventually(gone, lambda: not release.has("CustomResourceDefinition", CRD), 30, 0.05)


def remaining(release: Release, plural: str) -> list[Any]:
    path = f"/api/v1/namespaces/{release.namespace}/{plural}"
    items: list[Any] = release.server.get(path, labelSelector="helm.sh/chart")["items"]
    return items
