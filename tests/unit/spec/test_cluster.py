"""spec.cluster: the parser refuses settings that Kubernetes would refuse in a pod."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.cluster import Cluster
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.documents.refusals import refused

NODE: Document = {"name": "v", "hostPath": {"path": "/var"}}
MOUNT: Document = {"name": "v", "mountPath": "/v"}
SOURCES: dict[str, Document] = {
    "persistentVolumeClaim": {"claimName": "claim"},
    "hostPath": {"path": "/var"},
    "configMap": {"name": "config"},
    "secret": {"secretName": "secret"},
}


def with_cluster(**fields: Any) -> Document:
    """Return a document with these cluster settings."""
    return document(cluster=fields)


def settings(**fields: Any) -> Cluster:
    return parse(with_cluster(**fields)).spec.cluster


def test_cluster_defaults() -> None:
    cluster = settings()
    assert cluster.image is None
    assert cluster.head.cpu is None
    assert cluster.workers.max is None
    assert (cluster.env, cluster.volumes, cluster.tolerations) == ([], [], [])
    mounted = settings(volumes=[NODE], volumeMounts=[MOUNT])
    assert mounted.volume_mounts[0].read_only is False


ACCEPTED: dict[str, list[Any]] = {
    "volumes": [[{"name": "v", name: SOURCES[name]}] for name in SOURCES],
    "tolerations": [
        [{"key": "gpu", "operator": "Exists"}],
        [{"key": "gpu", "value": "a100"}],
        [{"key": "gpu"}],
        [{"operator": "Exists"}],
        [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
        [{"key": "gpu", "operator": "Equal", "value": "", "effect": "NoSchedule"}],
    ],
    "env": [[{"name": name, "value": ""}] for name in ("A", "_a", "a.b-c_9", "-", "A" * 128)],
    "head": [
        *({"memory": memory} for memory in ("1073741824", "1Gi", "8Gi", "1.5Gi", "2Ti")),
        *({"memory": memory} for memory in ("2000000k", "2G")),
        *({"cpu": cpu} for cpu in (0.001, 1, 2.5, 1024)),
    ],
    "workers": [{"min": 0}, {"max": 1}, {"min": 2, "max": 2}, {"min": 9}],
}


@pytest.mark.parametrize("field", ACCEPTED)
def test_cluster_setting_is_accepted(field: str) -> None:
    for value in ACCEPTED[field]:
        dumped = settings(**{field: value}).model_dump(by_alias=True, exclude_unset=True)
        assert dumped == {field: value}


KEYS = [
    *((key, False) for key in ("batchinference.dev/attempt", "ray.io/cluster", "ray.io/x")),
    *((key, False) for key in ("kueue.x-k8s.io/queue-name", "app.kubernetes.io/managed-by")),
    *((key, False) for key in ("kueue.x-k8s.io/podset-required-topology", "a b")),
    ("ray.io/gang-scheduling-enabled", False),
    *((key, True) for key in ("team", "example.com/ray.io", "my-ray.io/x", "a/" + "b" * 63)),
    ("a/" + "b" * 64, False),
]


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize(("key", "accepted"), KEYS)
def test_keys_of_the_operators_are_reserved(field: str, key: str, accepted: bool) -> None:
    """With these labels, a pod could count as one of another job or queue, or of no limit."""
    document_ = with_cluster(**{field: {key: "x"}})
    if accepted:
        assert parse(document_)
    else:
        assert refused(document_).startswith(f"spec.cluster.{field}")


def node_affinity(**requirement: Any) -> Document:
    terms = [{"matchExpressions": [{"key": "zone", **requirement}]}]
    required = {"nodeSelectorTerms": terms}
    return with_cluster(
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    )


@pytest.mark.parametrize(
    ("operator", "values", "accepted"),
    [
        ("In", ["a"], True), ("In", [], False), ("NotIn", [], False), ("Exists", [], True),
        ("Exists", ["a"], False), ("DoesNotExist", ["a"], False), ("Gt", ["3"], True),
        ("Gt", ["a"], False), ("Lt", ["3", "4"], False), ("Gt", ["٣"], False),
    ],
)  # fmt: skip
def test_values_suit_the_operator(operator: str, values: list[str], accepted: bool) -> None:
    document_ = node_affinity(operator=operator, values=values)
    if accepted:
        assert parse(document_)
    else:
        assert "nodeSelectorTerms[0].matchExpressions[0]" in refused(document_)


@pytest.mark.parametrize("name", ["RAY_memory_usage_threshold", "MY_RAY_ADDRESS", "RAY_AUTHOR"])
def test_a_variable_that_is_not_reserved_is_accepted(name: str) -> None:
    assert settings(env=[{"name": name, "value": "x"}]).env[0].name == name


@pytest.mark.parametrize("prefix", ["R", "RAY_", "RAY_AUTH_", "KUBE", "BATCHINFERENCE_", "RAYS_"])
def test_keys_of_an_object_are_no_reserved_variables(prefix: str, messages: Messages) -> None:
    cluster = with_cluster(envFrom=[{"prefix": prefix, "secretRef": {"name": "s"}}])
    if prefix == "RAYS_":
        assert parse(cluster)
    else:
        messages.check(refused(cluster))


@pytest.mark.parametrize("path", ["/tmp", "/tmp/rays", "/dev/shmem", "/etc/batchinference-own"])
def test_volume_outside_of_the_reserved_paths_is_accepted(path: str) -> None:
    mounts = [{**MOUNT, "mountPath": path}]
    assert settings(volumes=[NODE], volumeMounts=mounts).volume_mounts[0].mount_path == path
