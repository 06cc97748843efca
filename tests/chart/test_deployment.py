"""The operator's pod: one at a time, under the strictest Pod Security, set as the values say."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from batchinference import __version__
from batchinference.spec import parse_cluster
from batchinference.spec.cluster import Cluster
from batchinference_operator.runtime.settings import OperatorSettings
from support.cluster.chart import Chart, container, one

Object = dict[str, Any]

PROBES = {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@pytest.fixture(scope="module")
def manifests(chart: Chart) -> list[Object]:
    return chart.manifests()


def pod(manifests: list[Object]) -> Object:
    template: Object = one(manifests, "Deployment")["spec"]["template"]
    return template


def test_deployment_has_one_replica_and_recreates_it(manifests: list[Object]) -> None:
    spec = one(manifests, "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_the_deployment_selects_its_own_pods(manifests: list[Object]) -> None:
    selector = one(manifests, "Deployment")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod(manifests)["metadata"]["labels"].items()


@pytest.mark.parametrize("values", [{"commonLabels": {"a": "b"}}, {"podLabels": {"a": "b"}}])
def test_more_labels_do_not_change_the_selector(
    chart: Chart, manifests: list[Object], values: Object
) -> None:
    """Kubernetes allows no change of it, so an upgrade with one would fail."""
    changed = chart.manifests(values)
    assert pod(changed)["metadata"]["labels"]["a"] == "b"
    selector = one(manifests, "Deployment")["spec"]["selector"]
    assert one(changed, "Deployment")["spec"]["selector"] == selector


def test_pod_is_restricted(manifests: list[Object]) -> None:
    spec = pod(manifests)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(manifests)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(spec)
    assert [volume for volume in spec["volumes"] if "hostPath" in volume] == []


def test_only_tmp_is_writable(manifests: list[Object]) -> None:
    mounts = {mount["mountPath"]: mount for mount in container(manifests)["volumeMounts"]}
    assert "readOnly" not in mounts["/tmp"]
    assert all(mount["readOnly"] for path, mount in mounts.items() if path != "/tmp")


def test_tmp_does_not_block_node_drains(chart: Chart, manifests: list[Object]) -> None:
    volumes = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
    assert pod(manifests)["metadata"]["annotations"][volumes] == "tmp"
    own = chart.manifests({"podAnnotations": {volumes: "tmp,cache", "a": "b"}})
    annotations = pod(own)["metadata"]["annotations"]
    assert (annotations[volumes], annotations["a"]) == ("tmp,cache", "b")


def test_the_health_endpoint_is_probed_where_it_listens(manifests: list[Object]) -> None:
    found = container(manifests)
    assert {"name": "http", "containerPort": 8080} in found["ports"]
    assert OperatorSettings.model_fields["health_port"].default == 8080
    for probe, path in PROBES.items():
        assert found[probe]["httpGet"] == {"path": path, "port": "http"}
        assert found[probe]["timeoutSeconds"] >= 5  # a busy loop answers late


def test_memory_is_limited_and_cpu_is_not(manifests: list[Object]) -> None:
    """A limit of memory keeps a node whole; one of CPU would only make the operator late."""
    resources = container(manifests)["resources"]
    assert "memory" in resources["limits"]
    assert "cpu" not in resources["limits"]
    assert resources["requests"].keys() == {"cpu", "memory"}


def test_the_image_is_that_of_the_chart(manifests: list[Object]) -> None:
    assert container(manifests)["image"] == f"batchinference/operator:{__version__}"


def test_the_operator_understands_every_variable(
    chart: Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "watchNamespaces": ["a", "b"],
        "workers": 4,
        "api": {"qps": 20.5, "burst": 30},
        "logging": {"format": "plain", "level": "DEBUG"},
        "concurrency": {"maxRunning": 9, "maxRunningPerNamespace": 3},
    }
    variables = container(chart.manifests(values))["env"]
    for variable in variables:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = OperatorSettings()
    assert settings.namespace_list == ["a", "b"]
    assert (settings.workers, settings.qps, settings.burst) == (4, 20.5, 30)
    assert (settings.max_running, settings.max_running_per_namespace) == (9, 3)
    assert (settings.log_format, settings.log_level) == ("plain", "DEBUG")
    prefix = "BATCHINFERENCE_OPERATOR_"
    names = {variable["name"].removeprefix(prefix).lower() for variable in variables}
    assert OperatorSettings.model_fields.keys() - names == {"health_port", "watch_seconds"}


@pytest.mark.parametrize("name", ["defaults_file", "token_key_file"])
def test_every_file_that_a_variable_names_is_mounted(
    chart: Chart, manifests: list[Object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in container(manifests)["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    file = getattr(OperatorSettings(), name)
    mounts = {found["mountPath"]: found["name"] for found in container(manifests)["volumeMounts"]}
    volumes = {found["name"]: found for found in pod(manifests)["spec"]["volumes"]}
    volume = volumes[mounts[str(file.parent)]]
    kind = "ConfigMap" if "configMap" in volume else "Secret"
    source = (
        volume["configMap"]["name"] if "configMap" in volume else volume["secret"]["secretName"]
    )
    assert one(manifests, kind)["metadata"]["name"] == source
    assert file.name in one(manifests, kind)["data"]


def defaults(manifests: list[Object]) -> Cluster:
    text = one(manifests, "ConfigMap")["data"]["defaults.yaml"]
    return parse_cluster(text)


def test_the_default_image_of_jobs_is_the_pipeline_of_the_same_version(
    manifests: list[Object],
) -> None:
    assert defaults(manifests).image == f"batchinference/pipeline:{__version__}"


def test_defaults_are_handed_over_as_they_are_written(chart: Chart) -> None:
    given = {
        "image": "registry.example/pipeline:1",
        "requests": {"cpu": 0.1, "memory": "256Mi"},
        "head": {"cpu": 2},
        "workers": {"max": 100},
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5,
                         "effect": "NoExecute"}],
        "nodeSelector": {"a.example/pool": "true"},
        "profiles": {
            "T4": {"nodeSelector": {"gpu": "t4", "licensed": "yes"}, "runtimeClassName": "nvidia"},
            "XPU": {"resource": "vendor.example/xpu", "device": "xpu"},
        },
    }  # fmt: skip
    assert defaults(chart.manifests({"defaults": given})) == Cluster.model_validate(given)


@pytest.mark.parametrize("nothing", [None, {}])
def test_defaults_may_be_left_empty(chart: Chart, manifests: list[Object], nothing: Any) -> None:
    assert defaults(chart.manifests({"defaults": nothing})) == defaults(manifests)


@pytest.mark.parametrize("probe", PROBES)
def test_the_settings_of_a_probe_may_be_left_to_kubernetes(chart: Chart, probe: str) -> None:
    found = container(chart.manifests({probe: None}))[probe]
    assert found == {"httpGet": {"path": PROBES[probe], "port": "http"}}


def checksum(manifests: list[Object]) -> str:
    found: str = pod(manifests)["metadata"]["annotations"]["checksum/defaults"]
    return found


def test_changed_defaults_restart_the_operator(chart: Chart, manifests: list[Object]) -> None:
    """It reads them when it starts."""
    changed = chart.manifests({"defaults": {"image": "other"}})
    assert checksum(changed) != checksum(manifests)
    text = one(changed, "ConfigMap")["data"]["defaults.yaml"]
    assert checksum(changed) == hashlib.sha256(text.rstrip().encode()).hexdigest()


def test_other_changes_do_not_restart_the_operator(chart: Chart, manifests: list[Object]) -> None:
    assert checksum(chart.manifests({"serviceAccount": {"annotations": {"a": "b"}}})) == checksum(
        manifests
    )
