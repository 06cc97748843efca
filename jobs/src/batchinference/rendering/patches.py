"""Applies `cluster.patches` to the rendered pods.

A patch cannot change the parts on which BatchInference and KubeRay rely, or that protect other
tenants. Each of these parts is compared before and after the patch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from posixpath import normpath
from typing import Any

from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering.names import DEVICES_LABEL
from batchinference.rendering.objects import RESTRICTED
from batchinference.rendering.pod_resources import cpus_of_pod, devices_of_pod
from batchinference.rendering.strategic_merge import MergeError, strategic_merge
from batchinference.spec.cluster import MAX_GRACE_SECONDS, RESERVED_PATHS, RESERVED_VOLUMES
from batchinference.spec.patches import ALL_GROUPS, Patch
from batchinference.spec.pods import DEVICE_NAMES, RESERVED_NAMES
from batchinference.spec.problems import Problem, SpecError, did_you_mean

Object = dict[str, Any]
RAY_CONTAINER = "ray"
"""The container that runs Ray in every pod. KubeRay requires it to be the first container."""
RESERVED_DOMAINS = ("batchinference.dev", "ray.io", "kueue.x-k8s.io", "app.kubernetes.io")
"""Domains of labels and annotations with which BatchInference, KubeRay and Kueue select pods."""
_POD_FIELDS = (
    *("restartPolicy", "serviceAccountName", "serviceAccount", "automountServiceAccountToken"),
    # with a shared process namespace, other containers could read the autoscaler's token
    *("shareProcessNamespace", "hostPID"),
)
_RAY_FIELDS = ("command", "args", "ports", "restartPolicy", "restartPolicyRules")
"""Protected fields of the Ray container. The ports determine the ports of the head's Service."""
_KUBERAY_CONTAINERS = ("autoscaler", "wait-gcs-ready")
_PROJECTED = {"configMap", "secret", "downwardAPI", "clusterTrustBundle"}
"""Sources of projected volumes without a ServiceAccount token. With the token of the head's
ServiceAccount, a container could change other pods."""
_GRACE = "terminationGracePeriodSeconds"
_PROTECTED = "it belongs to BatchInference or KubeRay and cannot be patched. Remove it"


def templates_of(ray_cluster: Object) -> list[tuple[str, int, Object]]:
    """Return the name, maximum number of pods, and pod template of each group of a RayCluster."""
    workers = ray_cluster["workerGroupSpecs"]
    return [
        (HEAD_GROUP, 1, ray_cluster["headGroupSpec"]["template"]),
        *((group["groupName"], group["maxReplicas"], group["template"]) for group in workers),
    ]


def check_groups(field: str, names: Sequence[str], groups: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each name that is not a group of the job."""
    known = [HEAD_GROUP, *groups]
    for name in names:
        if name not in (ALL_GROUPS, *known):
            there = f"{', '.join(known)}, and '{ALL_GROUPS}' for all{did_you_mean(name, known)}"
            yield Problem(field, f"there is no group '{name}', only {there}")


def patched(ray_cluster: Object, patches: Sequence[Patch]) -> Object:
    """Return the RayCluster spec with the patches applied to its pods, in order.

    Raises SpecError if a patch changes a protected part.
    """
    head, workers = ray_cluster["headGroupSpec"], ray_cluster["workerGroupSpecs"]
    return {
        **ray_cluster,
        "headGroupSpec": {**head, "template": _patched(HEAD_GROUP, head["template"], patches)},
        "workerGroupSpecs": [
            {**group, "template": _patched(group["groupName"], group["template"], patches)}
            for group in workers
        ],
    }


def _patched(group: str, template: Object, patches: Sequence[Patch]) -> Object:
    return [template, *(after for _, after in versions(group, template, patches))][-1]


def versions(
    group: str, template: Object, patches: Sequence[Patch]
) -> Iterator[tuple[str, Object]]:
    """Yield for each patch of a group its field, and the template after this and earlier patches.

    Raises SpecError if a patch changes a protected part.
    """
    original = template
    for index, patch in enumerate(patches):
        if patch.applies_to(group):
            field = f"spec.cluster.patches[{index}]"
            template = _apply(original, template, patch, f"{field}.pod")
            yield field, template


def _apply(original: Object, template: Object, patch: Patch, field: str) -> Object:
    metadata = patch.pod.metadata.model_dump(exclude_defaults=True)
    try:
        pod = strategic_merge(_with_added(template["spec"], patch.pod.spec), patch.pod.spec)
        devices = devices_of_pod(pod) - devices_of_pod(original["spec"])
        cpus_of_pod(pod)
        protected = [*_reserved_keys(metadata), *_changed_protected_parts(template["spec"], pod)]
        found = [*((path, _PROTECTED) for path in protected), *_grace_problems(pod)]
        found += _mount_problems(original["spec"], pod)
        found += _volume_problems(original["spec"], template["spec"], pod)
    except MergeError as error:
        raise SpecError([Problem(f"{field}.spec.{error.path}", str(error))]) from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise SpecError([Problem(f"{field}.spec", f"it is no valid pod: {error}")]) from None
    if found:
        raise SpecError([Problem(f"{field}.{path}", message) for path, message in found])
    merged = strategic_merge(template["metadata"], metadata)
    # Ray still schedules onto its devices if a patch removes them from the container
    devices = int(original["metadata"]["labels"].get(DEVICES_LABEL, "0")) + max(0, devices)
    return {"metadata": _with_devices(merged, devices), "spec": pod}


def _with_added(pod: Object, patch: Object) -> Object:
    """Return the pod with the containers that a patch adds. They have only a security context."""
    added: Object = {}
    for kind in ("containers", "initContainers"):
        known = {repr(one["name"]) for one in pod.get(kind) or []}
        names = [one.get("name") for one in patch.get(kind) or [] if isinstance(one, dict)]
        if new := [name for name in names if repr(name) not in known]:
            added[kind] = [{"name": name, "securityContext": RESTRICTED} for name in new]
    merged: Object = strategic_merge(pod, added)
    return merged


def _with_devices(metadata: Object, devices: int) -> Object:
    """Return the metadata with the number of devices as a label, for the accounting of devices."""
    labels = {name: value for name, value in metadata["labels"].items() if name != DEVICES_LABEL}
    return {**metadata, "labels": labels | ({DEVICES_LABEL: str(devices)} if devices else {})}


def _grace_problems(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each grace period that is longer than the next attempt waits."""
    periods = {f"spec.{_GRACE}": pod.get(_GRACE)}
    for kind in ("containers", "initContainers"):
        for one in pod.get(kind) or []:
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                path = f"spec.{kind}[{one['name']}].{probe}.{_GRACE}"
                periods[path] = (one.get(probe) or {}).get(_GRACE)
    for path, seconds in periods.items():
        if seconds is not None and not (type(seconds) is int and 0 <= seconds <= MAX_GRACE_SECONDS):
            yield path, f"it is no integer from 0 to {MAX_GRACE_SECONDS} ({seconds}). Change it"


def _mount_problems(original: Object, pod: Object) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each mount that can write to a read-only volume of the job or the
    platform, or whose volume does not exist. A later patch could give such a volume a source."""
    writable = {
        one["name"]: any(not mount.get("readOnly") for mount in _mounts_of(original, one["name"]))
        for one in original.get("volumes") or []
    }
    existing = {one["name"] for one in pod.get("volumes") or [] if any(set(one) - {"name"})}
    for kind, container, mount in _mounts(pod):
        name, place = mount.get("name"), f"spec.{kind}[{container}].volumeMounts"
        if re.match(RESERVED_VOLUMES, str(name)):
            continue
        if name not in existing:
            yield place, f"there is no volume '{name}'. Define it in this patch or an earlier one"
        elif mount.get("readOnly") is not True and not writable.get(name, True):
            yield place, f"volume '{name}' is read-only. Set readOnly to true"


def _volume_problems(original: Object, before: Object, after: Object) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each volume of an earlier patch that is changed. If a patch of the
    platform changed one, the mounts of the job would write to the volume of the platform."""
    own = {one["name"] for one in original.get("volumes") or []}
    volumes = {one["name"]: one for one in after.get("volumes") or []}
    for one in before.get("volumes") or []:
        if one["name"] not in own and volumes.get(one["name"]) != one:
            yield "spec.volumes", f"an earlier patch defines the volume '{one['name']}'. Rename one"


def _mounts(pod: Object) -> Iterator[tuple[str, str, Object]]:
    """Yield the list and the name of the container of each volume mount, and the mount."""
    for kind in ("containers", "initContainers"):
        for one in pod.get(kind) or []:
            yield from ((kind, one["name"], mount) for mount in one.get("volumeMounts") or [])


def _mounts_of(pod: Object, volume: str) -> list[Object]:
    return [mount for _, _, mount in _mounts(pod) if mount["name"] == volume]


def _reserved_keys(metadata: Object) -> Iterator[str]:
    for kind, values in metadata.items():
        reserved = (key for key in values if key.partition("/")[0] in RESERVED_DOMAINS)
        yield from (f"metadata.{kind}.{key}" for key in reserved)


def _changed_protected_parts(before: Object, after: Object) -> Iterator[str]:
    """Yield the protected parts of a pod spec that differ."""
    yield from (f"spec.{name}" for name in _POD_FIELDS if before.get(name) != after.get(name))
    yield from _changed_ray_container(before["containers"][0], after.get("containers") or [{}])
    if _reserved_volumes(before) != _reserved_volumes(after):
        yield "spec.volumes"
    for volume in after.get("volumes") or []:
        sources = (volume.get("projected") or {}).get("sources") or []
        if volume not in (before.get("volumes") or []) and any(
            set(one) - _PROJECTED for one in sources
        ):
            yield f"spec.volumes[{volume['name']}].projected"
    for kind in ("containers", "initContainers"):
        for one in after.get(kind) or []:
            if one["name"] in _KUBERAY_CONTAINERS:
                yield f"spec.{kind}[{one['name']}]"
            elif one["name"] != RAY_CONTAINER and _reserved_mounts(one, paths=False):
                yield f"spec.{kind}[{one['name']}].volumeMounts"
            if any(re.fullmatch(DEVICE_NAMES, each["name"]) for each in one.get("env") or []):
                yield f"spec.{kind}[{one['name']}].env"


def _changed_ray_container(before: Object, containers: list[Object]) -> Iterator[str]:
    place, after = f"spec.containers[{RAY_CONTAINER}]", containers[0]
    if after.get("name") != RAY_CONTAINER:
        yield place
        return
    yield from (f"{place}.{name}" for name in _RAY_FIELDS if before.get(name) != after.get(name))
    if _reserved_variables(before) != _reserved_variables(after):
        yield f"{place}.env"
    if _reserved_mounts(before) != _reserved_mounts(after):
        yield f"{place}.volumeMounts"


def _reserved_variables(container: Object) -> list[Object]:
    return [one for one in container.get("env") or [] if re.match(RESERVED_NAMES, one["name"])]


def _reserved_volumes(pod: Object) -> list[Object]:
    return [one for one in pod.get("volumes") or [] if re.match(RESERVED_VOLUMES, one["name"])]


def _reserved_mounts(container: Object, *, paths: bool = True) -> list[Object]:
    """Return the mounts of reserved volumes, and with `paths` also the mounts at reserved paths."""
    return [
        one
        for one in container.get("volumeMounts") or []
        if re.match(RESERVED_VOLUMES, one.get("name", ""))
        or (paths and re.match(RESERVED_PATHS, normpath(one["mountPath"])))
    ]
