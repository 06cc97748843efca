"""The pods of the head and of the workers."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest

from batchinference.rendering import ATTEMPT_LABEL, DEVICES_LABEL, NAME_LABEL
from batchinference.rendering.pods import END_FILE, object_store_bytes
from batchinference.spec import SpecError
from batchinference.spec.quantities import MIN_HEAD_MEMORY
from batchinference.spec.volumes import RESERVED_PATHS
from support.documents.minimal import model_step
from support.documents.parsed import job
from support.operator.rendered import Object, Rendered, render

GPU = "nvidia.com/gpu"
OLDEST_KUBERNETES, NEWEST_KUBERNETES = "1.30", kubernetes_validate.latest_version()


def with_cluster(*steps: Any, **cluster: Any) -> Rendered:
    return render(job(steps=list(steps), cluster=cluster))


def container(pod: Object) -> Object:
    return pod["spec"]["containers"][0]


@pytest.mark.parametrize("kubernetes", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
def test_pods_are_valid_for_kubernetes(rendered: Rendered, kubernetes: str) -> None:
    for pod in rendered.pods:
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}}
        kubernetes_validate.validate(template | {"template": pod}, kubernetes, strict=True)
    for one in (rendered.config_map, rendered.secret):
        kubernetes_validate.validate(one, kubernetes, strict=True)


def test_containers_meet_the_pod_security_level_restricted(rendered: Rendered) -> None:
    autoscaler = rendered.cluster["autoscalerOptions"]
    for one in (*rendered.containers, autoscaler):
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_only_the_autoscaler_has_a_service_account_token(rendered: Rendered) -> None:
    """The token allows changes of every pod of the namespace, which the driver must not make."""
    head, *workers = rendered.pods
    for pod in rendered.pods:
        assert pod["spec"]["automountServiceAccountToken"] is False
    for one in (*rendered.containers, *workers):
        assert "kube-api" not in repr(one)
    (mount,) = rendered.cluster["autoscalerOptions"]["volumeMounts"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    (volume,) = [one for one in head["spec"]["volumes"] if one["name"] == mount["name"]]
    paths = re.findall(r"'path': '([a-z.]+)'", repr(volume["projected"]["sources"]))
    assert paths == ["token", "ca.crt", "namespace"]


def test_a_cluster_of_fixed_size_has_no_autoscaler() -> None:
    fixed, growing = (with_cluster(workers={"cpu": 2, "max": limit}) for limit in (1, 2))
    assert growing.cluster["enableInTreeAutoscaling"] is True
    assert {"enableInTreeAutoscaling", "autoscalerOptions"}.isdisjoint(fixed.cluster)
    assert "serviceAccountToken" not in repr(fixed.cluster)
    with_gpu = with_cluster(model_step(resources={"gpu": 1}), workers={"cpu": 2, "max": 1})
    assert with_gpu.cluster["enableInTreeAutoscaling"] is True


def test_gpu_pods_request_and_tolerate_gpus() -> None:
    step = model_step(resources={"gpu": 2, "cpu": 3})
    made = with_cluster(step, requests={"cpu": 0.5}, tolerations=[{"key": "team"}])
    gpu, cpu = made.workers["embed"]["template"], made.workers["cpu"]["template"]
    assert container(gpu)["resources"]["limits"][GPU] == "2"
    assert container(gpu)["resources"]["requests"][GPU] == "2"
    taint = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
    assert gpu["spec"]["tolerations"] == [{"key": "team", "operator": "Equal"}, taint]
    for pod in (made.pods[0], cpu):
        assert pod["spec"]["tolerations"] == [{"key": "team", "operator": "Equal"}]
        assert GPU not in repr(container(pod))


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({"cpu": 0.5}, {"cpu": "500m", "memory": "3Gi"}),
        ({"memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}),
        ({}, {"cpu": "2", "memory": "3Gi"}),
        ({"cpu": 64, "memory": "1Ti"}, {"cpu": "2", "memory": "3Gi"}),
    ],
)
def test_requests_follow_the_job(requests: Any, expected: Any) -> None:
    made = with_cluster(requests=requests, workers={"cpu": 2, "memory": "3Gi"})
    resources = container(made.workers["cpu"]["template"])["resources"]
    assert resources == {"limits": {"cpu": "2", "memory": "3Gi"}, "requests": expected}


def test_object_store_of_the_smallest_head_is_accepted_by_ray() -> None:
    from ray._private import ray_constants

    for memory, size in ((MIN_HEAD_MEMORY, 161_061_273), ("4Gi", 1_127_428_915)):
        parameters = with_cluster(head={"memory": memory}).head["rayStartParams"]
        assert parameters["object-store-memory"] == str(size)
        assert size >= ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES
    assert object_store_bytes("600Mi") == ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES


SOURCES: dict[str, Any] = {
    "persistentVolumeClaim": {"claimName": "c", "readOnly": True},
    "configMap": {"name": "c", "items": [{"key": "k", "path": "a/b"}], "optional": True},
    "secret": {"secretName": "s"},
    "emptyDir": {},
    "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}},
    "csi": {"driver": "d", "readOnly": True, "volumeAttributes": {"a": "b"}},
    "image": {"reference": "x", "pullPolicy": "Always"},
    "nfs": {"server": "s", "path": "/p"},
    "hostPath": {"path": "/var"},
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_volume_is_mounted_in_every_pod(kind: str) -> None:
    volume = {"name": "v", kind: SOURCES[kind]}
    mounts = [{"name": "v", "mountPath": "/v"},
              {"name": "v", "mountPath": "/w", "readOnly": True, "subPath": "a/b"}]  # fmt: skip
    made = with_cluster(model_step(resources={"gpu": 1}), volumes=[volume], volumeMounts=mounts)
    for pod in made.pods:
        assert volume in pod["spec"]["volumes"]
        assert container(pod)["volumeMounts"][:2] == mounts


def test_pods_of_the_attempt_are_spread_by_default() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    for pod in with_cluster(topologySpreadConstraints=[spread]).pods:
        (made,) = pod["spec"]["topologySpreadConstraints"]
        labels = made["labelSelector"]["matchLabels"]
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert {NAME_LABEL, ATTEMPT_LABEL} <= labels.keys()


def test_devices_are_claimed_by_the_template_of_their_profile() -> None:
    profiles = {"GPU": {"resourceClaimTemplateName": "one-gpu"}}
    made = with_cluster(model_step(resources={"gpu": 2}), profiles=profiles)
    pod = made.workers["embed"]["template"]
    assert pod["spec"]["resourceClaims"] == [
        {"name": f"device-{number}", "resourceClaimTemplateName": "one-gpu"} for number in range(2)
    ]
    claims = [{"name": "device-0"}, {"name": "device-1"}]
    assert container(pod)["resources"]["claims"] == claims
    assert GPU not in repr(pod)
    assert pod["metadata"]["labels"][DEVICES_LABEL] == "2"
    assert made.workers["embed"]["rayStartParams"]["num-gpus"] == "2"
    assert "resourceClaims" not in made.pods[0]["spec"]


def test_pods_share_no_file_that_says_that_one_of_them_ends() -> None:
    """A job may mount a volume of many pods, which keeps its files, anywhere else, even at /tmp."""
    assert re.match(RESERVED_PATHS, END_FILE)
    assert not re.match(RESERVED_PATHS, "/tmp")


def test_no_container_has_a_variable_twice(rendered: Rendered) -> None:
    """KubeRay's definition refuses such a RayJob, and the job would wait for ever. So a job cannot
    set a variable that its pods already have."""
    own = render(job(steps=[model_step(resources={"gpu": 1})]))
    variables = {one["name"] for pod in own.pods for one in container(pod)["env"]}
    for name in variables:
        with pytest.raises(SpecError, match=f"'{name}' is reserved"):
            job(cluster={"env": [{"name": name, "value": "own"}]})
    for pod in rendered.pods:
        names = [one["name"] for one in container(pod)["env"]]
        assert len(names) == len(set(names))
