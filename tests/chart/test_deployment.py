"""The Deployment of the operator: one restricted pod that is configured by the values."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from batchinference import __version__
from batchinference.spec import parse_defaults
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.cost import Prices
from batchinference_operator.settings import OperatorSettings
from support.cluster.chart import NAMESPACE, Chart, container, defaults_map, one

Object = dict[str, Any]

IMAGE = f"batchinference/pipeline:{__version__}"
PROBES = {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}


@pytest.fixture(scope="module")
def manifests(chart: Chart) -> list[Object]:
    return chart.manifests()


def pod(manifests: list[Object]) -> Object:
    template: Object = one(manifests, "Deployment")["spec"]["template"]
    return template


def test_replicas_are_replaced_one_by_one(manifests: list[Object]) -> None:
    spec = one(manifests, "Deployment")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (spread,) = pod(manifests)["spec"]["topologySpreadConstraints"]
    budget = one(manifests, "PodDisruptionBudget")["spec"]
    assert budget["minAvailable"] == 1
    assert spec["selector"] == spread["labelSelector"] == budget["selector"]


def test_single_replica_has_no_disruption_budget(chart: Chart) -> None:
    """A budget of one replica would block the drain of its node forever."""
    manifests = chart.manifests({"replicas": 1})
    assert "PodDisruptionBudget" not in {manifest["kind"] for manifest in manifests}


@pytest.mark.parametrize("values", [{"commonLabels": {"a": "b"}}, {"podLabels": {"a": "b"}}])
def test_deployment_selector_does_not_depend_on_labels_in_the_values(
    chart: Chart, manifests: list[Object], values: Object
) -> None:
    """Kubernetes refuses to change a selector, so an upgrade would fail."""
    changed = chart.manifests(values)
    assert pod(changed)["metadata"]["labels"]["a"] == "b"
    selector = one(manifests, "Deployment")["spec"]["selector"]
    assert one(changed, "Deployment")["spec"]["selector"] == selector


def test_pod_is_restricted(manifests: list[Object]) -> None:
    spec = pod(manifests)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
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


def test_health_probes_use_the_health_port(manifests: list[Object]) -> None:
    result = container(manifests)
    assert {"name": "http", "containerPort": 8080} in result["ports"]
    assert OperatorSettings.model_fields["health_port"].default == 8080
    for probe, path in PROBES.items():
        assert result[probe]["httpGet"] == {"path": path, "port": "http"}
        assert result[probe]["timeoutSeconds"] >= 5  # a busy event loop answers late


def test_resources_limit_memory_but_not_cpu(manifests: list[Object]) -> None:
    """A memory limit protects the node. A CPU limit would only slow the operator down."""
    resources = container(manifests)["resources"]
    assert "memory" in resources["limits"]
    assert "cpu" not in resources["limits"]
    assert resources["requests"].keys() == {"cpu", "memory"}


def test_image_has_the_version_of_the_chart(manifests: list[Object]) -> None:
    assert container(manifests)["image"] == f"batchinference/operator:{__version__}"


def test_env_variables_are_read_by_the_operator(
    chart: Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "watchNamespaces": ["a", "b"],
        "workers": 4,
        "api": {"qps": 20.5, "burst": 30},
        "logging": {"format": "plain", "level": "DEBUG"},
        "concurrency": {"maxRunning": 9, "maxRunningPerNamespace": 3},
        "clusterDomain": "corp.example",
        "metrics": {"maxNamespaces": 7},
        "prices": {"currency": "EUR", "deviceHour": "2.5"},
    }
    variables = container(chart.manifests(values))["env"]
    for variable in variables:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = OperatorSettings()
    assert settings.namespace_list == ["a", "b"]
    assert settings.lease == f"{NAMESPACE}/{settings.release}"
    assert settings.identity == f"{settings.lease}/{settings.pod_name}"
    assert (settings.workers, settings.qps, settings.burst) == (4, 20.5, 30)
    assert (settings.own_namespace, settings.cluster_domain) == (NAMESPACE, "corp.example")
    assert (settings.max_running, settings.max_running_per_namespace) == (9, 3)
    assert settings.metrics_namespaces == 7
    assert settings.prices == Prices(currency="EUR", cpuHour="0", deviceHour="2.5")
    assert (settings.log_format, settings.log_level) == ("plain", "DEBUG")
    prefix = "BATCHINFERENCE_OPERATOR_"
    names = {variable["name"].removeprefix(prefix).lower() for variable in variables}
    unset = OperatorSettings.model_fields.keys() - names
    assert unset == {"health_port", "pod_name", "watch_seconds"}


@pytest.mark.parametrize("name", ["defaults_file", "token_key_file"])
def test_env_variables_of_files_refer_to_mounted_files(
    chart: Chart, manifests: list[Object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in container(manifests)["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    file = getattr(OperatorSettings(), name)
    mounts = {value["mountPath"]: value["name"] for value in container(manifests)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(manifests)["spec"]["volumes"]}
    volume = volumes[mounts[str(file.parent)]]
    if "configMap" in volume:
        source, expected = defaults_map(manifests), volume["configMap"]["name"]
    else:
        source, expected = one(manifests, "Secret"), volume["secret"]["secretName"]
    assert source["metadata"]["name"] == expected
    assert file.name in source["data"]


def defaults(manifests: list[Object]) -> PlatformDefaults:
    return parse_defaults(defaults_map(manifests)["data"]["defaults.yaml"])


@pytest.mark.parametrize(
    ("given", "image", "on_gpus"),
    [
        ({}, IMAGE, f"{IMAGE}-cuda"),
        ({"image": "own:1"}, "own:1", None),
        ({"profiles": {"GPU": {"image": "vllm:1"}}}, IMAGE, "vllm:1"),
    ],
    ids=["none", "one image", "an image for GPUs"],
)
def test_default_images_are_those_of_the_same_version_unless_one_is_given(
    chart: Chart, given: Object, image: str, on_gpus: str | None
) -> None:
    """Pods without GPUs do not pull CUDA."""
    result = defaults(chart.manifests({"defaults": given}))
    assert result.image == image
    assert (result.profiles["GPU"].image if "GPU" in result.profiles else None) == on_gpus


def test_defaults_are_passed_unchanged(chart: Chart) -> None:
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
    assert defaults(chart.manifests({"defaults": given})) == PlatformDefaults.model_validate(given)


@pytest.mark.parametrize("empty", [None, {}])
def test_defaults_may_be_empty(chart: Chart, manifests: list[Object], empty: Any) -> None:
    assert defaults(chart.manifests({"defaults": empty})) == defaults(manifests)


@pytest.mark.parametrize("probe", PROBES)
def test_health_probe_settings_may_be_removed(chart: Chart, probe: str) -> None:
    result = container(chart.manifests({probe: None}))[probe]
    assert result == {"httpGet": {"path": PROBES[probe], "port": "http"}}


def checksum(manifests: list[Object]) -> str:
    text: str = pod(manifests)["metadata"]["annotations"]["checksum/defaults"]
    return text


def test_changed_defaults_restart_the_operator(chart: Chart, manifests: list[Object]) -> None:
    """The operator reads the defaults only when it starts."""
    changed = chart.manifests({"defaults": {"image": "other"}})
    assert checksum(changed) != checksum(manifests)
    text = defaults_map(changed)["data"]["defaults.yaml"]
    assert checksum(changed) == hashlib.sha256(text.rstrip().encode()).hexdigest()


def test_other_changes_do_not_restart_the_operator(chart: Chart, manifests: list[Object]) -> None:
    changed = chart.manifests({"serviceAccount": {"annotations": {"a": "b"}}})
    assert checksum(changed) == checksum(manifests)
