"""`cluster.patches` change any field of the pods, except for what others rely on."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import DEVICES_LABEL, Names, patched_pods
from batchinference.rendering.objects import RESTRICTED
from batchinference.spec import SpecError
from batchinference.spec.cluster import RESERVED_VOLUMES
from support.documents.minimal import model_step
from support.documents.parsed import job
from support.operator.rendered import Rendered, render

GPU = "nvidia.com/gpu"
TOKEN = {"serviceAccountToken": {"path": "token", "audience": "vault"}}
PROTECTED = "it belongs to BatchInference or KubeRay and cannot be patched. Remove it"


def patch(groups: list[str] | None = None, metadata: Any = None, **spec: Any) -> dict[str, Any]:
    return {"groups": groups or ["*"], "pod": {"metadata": metadata or {}, "spec": spec}}


def ray(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "ray", **fields}]


def patched(*patches: Any, **cluster: Any) -> Rendered:
    steps = [model_step("embed", replicas={"max": 4}, resources={"gpu": 1})]
    return render(job(steps=steps, cluster={"patches": list(patches), **cluster}))


def refusal(*patches: Any, **cluster: Any) -> str:
    with pytest.raises(SpecError) as refused:
        patched(*patches, **cluster)
    return str(refused.value)


def test_patch_applies_to_its_groups_only() -> None:
    made = patched(patch(["head"], schedulerName="a"), patch(["cpu", "embed"], schedulerName="b"))
    head, *workers = [pod["spec"]["schedulerName"] for pod in made.pods]
    assert (head, workers) == ("a", ["b", "b"])


def test_patch_of_the_memory_is_refused_if_it_should_grow_after_out_of_memory() -> None:
    memory = patch(["head"], containers=ray(resources={"limits": {"memory": "9Gi"}}))
    other = patch(containers=ray(resources={"limits": {"ephemeral-storage": "9Gi"}}))
    grows = {"outOfMemory": {"maxMemory": "64Gi"}}
    assert render(job(cluster={"patches": [memory]}))
    assert render(job(cluster={"patches": [other]}, retry=grows))
    with pytest.raises(SpecError) as refused:
        render(job(cluster={"patches": [memory, other]}, retry=grows))
    assert str(refused.value) == (
        "spec.retry.outOfMemory: it has no effect on group 'head', whose memory a patch sets. Set "
        "cluster.head.memory, cluster.workers.memory or resources.memory of the step instead"
    )


def test_later_patch_changes_what_an_earlier_one_added() -> None:
    made = patched(patch(schedulerName="a"), patch(["head"], schedulerName=None))
    head, *workers = [pod["spec"].get("schedulerName") for pod in made.pods]
    assert (head, workers) == (None, ["a", "a"])


def test_unknown_group_is_refused_with_the_known_ones() -> None:
    known = "only head, cpu, embed, and '*' for all"
    assert refusal(patch(["*"]), patch(["embd"])) == (
        f"spec.cluster.patches[1].groups: there is no group 'embd', {known}; did you mean 'embed'?"
    )
    assert refusal(rayStartParams={"gpu": {"log-color": "true"}}).startswith(
        f"spec.cluster.rayStartParams: there is no group 'gpu', {known}"
    )


@pytest.mark.parametrize("domain", ["batchinference.dev", "ray.io", "kueue.x-k8s.io"])
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_labels_of_the_product_cannot_be_patched(kind: str, domain: str) -> None:
    found = refusal(patch(metadata={kind: {f"{domain}/name": "other"}}))
    assert found == f"spec.cluster.patches[0].pod.metadata.{kind}.{domain}/name: {PROTECTED}"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"restartPolicy": "Always"}, "restartPolicy"),
        ({"serviceAccountName": "admin"}, "serviceAccountName"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
        ({"automountServiceAccountToken": None}, "automountServiceAccountToken"),
        ({"shareProcessNamespace": True}, "shareProcessNamespace"),
        ({"hostPID": True}, "hostPID"),
        ({"containers": None}, "containers[ray]"),
        ({"containers": ray(command=["sh"])}, "containers[ray].command"),
        ({"containers": ray(args=["-c"])}, "containers[ray].args"),
        ({"containers": ray(ports=[{"containerPort": 80}])}, "containers[ray].ports"),
        ({"containers": ray(env=[{"name": "RAY_AUTH_MODE", "value": "disabled"}])},
         "containers[ray].env"),
        ({"containers": ray(env=[{"name": "BATCHINFERENCE_JOB_SHA256", "value": None}])},
         "containers[ray].env"),
        ({"containers": ray(env=None)}, "containers[ray].env"),
        ({"containers": ray(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])},
         "containers[ray].env"),
        ({"containers": [{"name": "own", "env": [{"name": "ASCEND_VISIBLE_DEVICES"}]}]},
         "containers[own].env"),
        ({"initContainers": [{"name": "own", "env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}]},
         "initContainers[own].env"),
        ({"containers": ray(volumeMounts=None)}, "containers[ray].volumeMounts"),
        ({"containers": ray(volumeMounts=[{"mountPath": "/etc/batchinference", "name": "x"}])},
         "containers[ray].volumeMounts"),
        ({"containers": ray(volumeMounts=[{"mountPath": "/x/../tmp/ray", "name": "x"}])},
         "containers[ray].volumeMounts"),
        ({"containers": ray(volumeMounts=[{"mountPath": "/x", "name": "ray-token"}])},
         "containers[ray].volumeMounts"),
        ({"containers": [{"name": "autoscaler"}]}, "containers[autoscaler]"),
        ({"initContainers": [{"name": "wait-gcs-ready"}]}, "initContainers[wait-gcs-ready]"),
        ({"containers": [{"name": "own", "volumeMounts": [
            {"mountPath": "/x", "name": "batchinference-kube-api"}]}]},
         "containers[own].volumeMounts"),
        ({"initContainers": [{"name": "own", "volumeMounts": [
            {"mountPath": "/x", "name": "batchinference-kube-api"}]}]},
         "initContainers[own].volumeMounts"),
        ({"volumes": [{"name": "own", "projected": {"sources": [TOKEN]}}]},
         "volumes[own].projected"),
        ({"volumes": [{"name": "ray-logs", "emptyDir": {}}]}, "volumes"),
        ({"volumes": [{"name": "batchinference-kube-api", "emptyDir": {}}]}, "volumes"),
        ({"volumes": None}, "volumes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_protected_part_cannot_be_patched(spec: Any, path: str) -> None:
    found = refusal(patch(["head"], **spec)).splitlines()
    assert f"spec.cluster.patches[0].pod.spec.{path}: {PROTECTED}" in found


MODELS = {"name": "models", "mountPath": "/models", "hostPath": {"path": "/models"}}
NO_SUCH_VOLUME = "there is no volume 'late'. Define it in this patch or an earlier one"


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("name", ["ray", "own"])
@pytest.mark.parametrize(
    "mount",
    [
        {"mountPath": "/models", "name": "models", "readOnly": False},
        {"mountPath": "/models", "name": "models", "readOnly": None},
        {"mountPath": "/models", "name": "models", "readOnly": "true"},
        {"mountPath": "/again", "name": "models"},
        {"mountPath": "/again", "name": "models", "subPath": "x"},
    ],
    ids=str,
)
def test_read_only_volume_stays_read_only(kind: str, name: str, mount: Any) -> None:
    """It may be a directory of the node, which the platform shares by its defaults."""
    if (kind, name) == ("initContainers", "ray"):
        name = "init"
    spec = {kind: [{"name": name, "volumeMounts": [mount]}]}
    assert refusal(patch(["head"], **spec), volumes=[MODELS | {"readOnly": True}]) == (
        f"spec.cluster.patches[0].pod.spec.{kind}[{name}].volumeMounts: volume 'models' is "
        "read-only. Set readOnly to true"
    )
    assert patched(patch(["head"], **spec), volumes=[MODELS]), "this volume is writable"


def test_read_only_volume_can_be_mounted_again() -> None:
    mount = {"mountPath": "/again", "name": "models", "readOnly": True}
    made = patched(patch(containers=ray(volumeMounts=[mount])),
                   volumes=[MODELS | {"readOnly": True}])  # fmt: skip
    assert all(mount in pod["spec"]["containers"][0]["volumeMounts"] for pod in made.pods)


@pytest.mark.parametrize("volumes", [[], [{"name": "late"}], [{"name": "late", "hostPath": None}]])
def test_volume_of_a_later_patch_cannot_be_mounted(volumes: Any) -> None:
    """The later patch may be one of the platform, which mounts the volume read-only."""
    early = patch(["head"], volumes=volumes,
                  containers=ray(volumeMounts=[{"mountPath": "/w", "name": "late"}]))  # fmt: skip
    later = patch(["head"], volumes=[{"name": "late", "hostPath": {"path": "/models"}}])
    field = "spec.cluster.patches[0].pod.spec.containers[ray].volumeMounts"
    assert refusal(early, later) == f"{field}: {NO_SUCH_VOLUME}"


def test_volume_of_an_earlier_patch_cannot_be_changed() -> None:
    """The later patch may be one of the platform. The job would write to its volume."""
    claim = {"name": "shared", "persistentVolumeClaim": {"readOnly": False}}
    early = patch(["head"], volumes=[claim],
                  containers=ray(volumeMounts=[{"mountPath": "/w", "name": "shared"}]))  # fmt: skip
    platform = {"name": "shared", "persistentVolumeClaim": {"claimName": "models"}}
    field = "spec.cluster.patches[1].pod.spec.volumes"
    assert refusal(early, patch(["head"], volumes=[platform])).startswith(f"{field}: an earlier")


def test_added_container_starts_with_the_security_context_of_the_others() -> None:
    root = {"name": "root", "securityContext": {"runAsNonRoot": False}}
    free = {"name": "free", "securityContext": None}
    first = patch(["head"], containers=[root, free], initContainers=[{"name": "own"}])
    (head, *_) = patched(first, patch(["head"], containers=[{"name": "free", "image": "x"}])).pods
    contexts = [one.get("securityContext") for one in head["spec"]["containers"]]
    assert contexts == [RESTRICTED, {**RESTRICTED, "runAsNonRoot": False}, None]
    assert head["spec"]["initContainers"] == [{"name": "own", "securityContext": RESTRICTED}]


def test_other_projected_volumes_are_allowed() -> None:
    sources = [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}, {"downwardAPI": {}}]
    volume = {"name": "own", "projected": {"sources": sources}}
    assert all(volume in pod["spec"]["volumes"] for pod in patched(patch(volumes=[volume])).pods)
    assert "own" not in RESERVED_VOLUMES


@pytest.mark.parametrize(
    "spec",
    [
        {"initContainers": "x"},
        {"initContainers": [{"name": 1, "volumeMounts": 2}]},
        {"containers": ray(resources={"limits": {"cpu": "many"}})},
        {"containers": ray(resources={"limits": {GPU: "1e400"}})},
        {"containers": ray(resources={"limits": {GPU: "-1"}})},
        {"containers": ray(resources={"limits": [1]})},
        {"volumes": [{"name": "own", "projected": {"sources": 1}}]},
        {"resourceClaims": 1},
        {"initContainers": [{"name": "own", "startupProbe": 1}]},
    ],
    ids=str,
)
def test_pod_that_cannot_be_read_is_refused(spec: Any) -> None:
    assert refusal(patch(**spec)).startswith("spec.cluster.patches[0].pod.spec")


def test_volumes_can_be_added_after_all_were_removed() -> None:
    added = {"name": "own", "emptyDir": {}}
    made = patched(patch(["cpu"], volumes=None), patch(["cpu"], volumes=[added]))
    assert made.workers["cpu"]["template"]["spec"]["volumes"] == [added]


@pytest.mark.parametrize("seconds", [61, -1, 1.0, "60", True])
def test_grace_period_is_at_most_that_of_the_specification(seconds: Any) -> None:
    """The next attempt does not wait longer for the pods of this one."""
    field = "terminationGracePeriodSeconds"
    probes = {"livenessProbe": {field: seconds}, "startupProbe": {field: 60}}
    found = refusal(
        patch(["cpu"], **{field: seconds}, initContainers=[{"name": "own", **probes}])
    ).splitlines()
    message = f"it is no integer from 0 to 60 ({seconds}). Change it"
    place = "spec.cluster.patches[0].pod.spec"
    assert found == [
        f"{place}.{field}: {message}",
        f"{place}.initContainers[own].livenessProbe.{field}: {message}",
    ]
    (head, *_) = patched(patch(**{field: 60})).pods
    assert head["spec"][field] == 60


def test_devices_of_patched_pods_are_counted_and_charged() -> None:
    """A sidecar, an init container, another resource name and the head are no way around limits."""
    two = {"resources": {"limits": {"nvidia.com/mig-1g": 2}}}
    sidecars = patch(["embed"], containers=[{"name": "own", **two}])
    assert (
        "limits.devices: the job may grow to 12 devices (embed 4 x 3) and 11 are allowed"
        in refusal(sidecars, limits={"devices": 11})
    )
    label = patched(sidecars, limits={"devices": 12}).workers["embed"]["template"]["metadata"][
        "labels"
    ]
    assert label[DEVICES_LABEL] == "3"
    inits = patch(["head"], initContainers=[{"name": "own", **two}])
    assert "6 devices (head 1 x 2, embed 4 x 1)" in refusal(inits, limits={"devices": 5})
    assert patched(inits).pods[0]["metadata"]["labels"][DEVICES_LABEL] == "2"
    none = patch(["embed"], containers=ray(resources={"limits": {GPU: None}, "requests": None}))
    assert "4 devices (embed 4 x 1)" in refusal(none, limits={"devices": 3})
    pod = patched(none, none).workers["embed"]["template"]
    assert pod["metadata"]["labels"][DEVICES_LABEL] == "1"
    assert GPU not in pod["spec"]["containers"][0]["resources"]["limits"]


def test_cpus_of_patched_pods_are_counted() -> None:
    four = {"resources": {"requests": {"cpu": "3500m"}, "limits": {"cpu": "4"}}}
    sidecar = {"name": "own", "restartPolicy": "Always", **four}
    within = patched(limits={"cpu": 20}).cluster
    assert within
    for spec in ({"containers": [{"name": "own", **four}]}, {"initContainers": [sidecar]}):
        assert "CPUs (head 1 x 5," in refusal(patch(["head"], **spec), limits={"cpu": 10})
    assert "head 1 x 9," in refusal(
        patch(["head"], resources={"limits": {"cpu": 9}}), limits={"cpu": 10}
    )
    less = patch(containers=ray(resources={"limits": {"cpu": "1m"}, "requests": {"cpu": "1m"}}))
    assert "CPUs (head 1 x 1, cpu 2 x 2," in refusal(less, limits={"cpu": 2})


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"name": "own", "resources": {"requests": {"cpu": 1}}}]},
        {"containers": [{"name": "own", "resources": {"limits": {"cpu": 0}}}]},
        {"initContainers": [{"name": "own"}]},
        {"resources": {"limits": {"cpu": 1}}, "containers": [{"name": "own"}]},
        {"containers": ray(resources={"limits": {"cpu": None}, "requests": {"cpu": "1m"}})},
    ],
    ids=str,
)
def test_containers_need_a_cpu_limit_where_cpus_are_limited(spec: Any) -> None:
    name = (spec.get("initContainers") or spec["containers"])[0]["name"]
    assert refusal(patch(["cpu"], **spec), limits={"cpu": 100}) == (
        f"spec.cluster.patches: CPUs are limited and a container has no CPU limit ({name} of "
        "group cpu): set resources.limits.cpu of the container"
    )
    assert patched(patch(["cpu"], **spec))


@pytest.mark.parametrize("limits", [{"devices": 100}, {"deviceHours": 1}])
def test_claims_are_refused_where_devices_are_limited(limits: Any) -> None:
    claim = patch(["cpu"], resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
    assert refusal(claim, limits=limits).startswith(
        "spec.cluster.patches: the devices of resourceClaims cannot be counted (group cpu)"
    )
    assert patched(claim).workers["cpu"]["template"]["metadata"]["labels"][DEVICES_LABEL] == "1"


def test_pods_of_each_group_are_validated_with_the_patches_so_far() -> None:
    patches = [patch(["head"], schedulerName="a"), patch(["*"], schedulerName="b")]
    found = [
        [
            (field, body["metadata"]["generateName"], body["template"]["spec"]["schedulerName"])
            for field, body in versions
        ]
        for versions in patched_pods(patched(*patches).job, Names("job", "uid", 3))
    ]
    assert found == [
        [
            ("spec.cluster.patches[0]", "job-3-head-", "a"),
            ("spec.cluster.patches[1]", "job-3-head-", "b"),
        ],
        [("spec.cluster.patches[1]", "job-3-cpu-", "b")],
        [("spec.cluster.patches[1]", "job-3-embed-", "b")],
    ]
    assert len(list(patched_pods(patched(*patches[:1]).job, Names("job", "uid", 3)))) == 1
