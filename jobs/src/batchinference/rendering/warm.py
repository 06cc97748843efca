"""Renders warm clusters, which start before a job needs them, and RayJobs that run in one.

An attempt fits into a warm cluster if its own cluster would have the same spec. A warm cluster runs
one RayJob and is then deleted, so no state of a job is left for another.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from batchinference.gzip_format import gzipped
from batchinference.plan import plan_for_cluster
from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering.config_map import DIGEST_VARIABLES, JOB_DIRECTORY, digest_of
from batchinference.rendering.names import (
    CLUSTER_LABEL,
    FINGERPRINT,
    MANAGED_BY,
    MANAGER,
    POOL_LABEL,
    WarmNames,
)
from batchinference.rendering.objects import Owner, metadata
from batchinference.rendering.patches import patched, templates_of
from batchinference.rendering.rayjob import RAY_API_VERSION, RAY_CLUSTER, entrypoint, ray_cluster
from batchinference.rendering.token_secret import token_secret
from batchinference.spec.job import BatchInference
from batchinference.spec.prices import PRICES_VARIABLE, PodPrices

MAX_PACKED = 96 << 10
"""Maximum size of the packed files. Linux limits each environment variable to 128 KiB."""
FILES = "batchinference-files"
"""Key of the packed files in the metadata of the Ray job."""
_DRIVER_PACKAGES = "batchinference.pipeline.job"
_TASK_PACKAGES = "batchinference.pipeline.execution.commit_tasks, torch, transformers"
"""The packages that are read from disk before a job needs them, in the head and in workers. In a
head with little memory, torch might use too much."""


@dataclass(frozen=True)
class WarmStart:
    """The objects of an attempt that fits into warm clusters with this fingerprint."""

    fingerprint: str
    job: BatchInference
    files: dict[str, str]
    ray_job: dict[str, Any]

    def ray_job_in(self, cluster: str) -> dict[str, Any]:
        """Return the RayJob of the attempt that runs in a warm cluster.

        KubeRay does not delete a selected cluster, and requires that the RayJob says so.
        """
        own = self.ray_job["spec"]
        spec = {name: value for name, value in own.items() if name != "ttlSecondsAfterFinished"}
        changes = {
            "entrypoint": unpacking_entrypoint(self.files, _prices(self.ray_job)),
            "metadata": {FILES: packed(self.files)},
            "shutdownAfterJobFinishes": False,
            "clusterSelector": {CLUSTER_LABEL: cluster},
            # KubeRay ignores it, and the operator reads the resources of the pods from it
            "rayClusterSpec": warm_cluster_spec(self.job, cluster),
        }
        return {**self.ray_job, "spec": {**spec, **changes}}


def warm_start(
    job: BatchInference,
    objects: tuple[dict[str, Any], dict[str, Any]],
    fingerprints: frozenset[str],
) -> WarmStart | None:
    """Return how an attempt with this ConfigMap and RayJob starts in a warm cluster.

    None if it fits into no pool with these fingerprints.
    """
    if not fingerprints or job.spec.cluster.queue is not None:
        return None  # before the cluster is rendered again
    config_map, ray_job = objects
    fingerprint = fingerprint_of(job)
    if fingerprint not in fingerprints or len(packed(config_map["data"])) > MAX_PACKED:
        return None
    return WarmStart(fingerprint, job, config_map["data"], ray_job)


def warm_cluster(
    job: BatchInference, pool: str, name: str, fingerprint: str, owner: Owner
) -> dict[str, Any]:
    """Return a RayCluster for jobs like this one, which has complete cluster settings."""
    labels = {MANAGED_BY: MANAGER, POOL_LABEL: pool}
    about = metadata(name, job.metadata.namespace, labels, owner)
    return {
        "apiVersion": RAY_API_VERSION,
        "kind": RAY_CLUSTER,
        "metadata": {**about, "annotations": {FINGERPRINT: fingerprint}},
        "spec": warm_cluster_spec(job, name),
    }


def warm_token_secret(namespace: str, cluster: str, token: str, owner: Owner) -> dict[str, Any]:
    """Return the Secret with the token of a warm cluster."""
    return token_secret(namespace, WarmNames(cluster, "", 0), token, owner)


def fingerprint_of(job: BatchInference) -> str:
    """Return the fingerprint of the warm clusters into which a job fits."""
    spec = warm_cluster_spec(job, "")
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def warm_cluster_spec(job: BatchInference, name: str) -> dict[str, Any]:
    """Return the spec of a warm cluster. Only the name of its Secret depends on its name."""
    groups = plan_for_cluster(job.spec).groups
    unpatched = ray_cluster(job, WarmNames(name, "", 0), {}, groups)
    cluster = patched(unpatched, job.spec.cluster.patches)
    started = {HEAD_GROUP, *(one.name for one in groups if one.min > 0)}
    for group, _, template in templates_of(cluster):
        if group in started:  # other pods start while a job runs
            ray = template["spec"]["containers"][0]
            packages = _DRIVER_PACKAGES if group == HEAD_GROUP else _TASK_PACKAGES
            read = f"python -c 'import {packages}' || true"
            hook = {"exec": {"command": ["/bin/sh", "-c", read]}}
            ray["lifecycle"] = {"postStart": hook, **ray.get("lifecycle", {})}
    return cluster


def _prices(ray_job: dict[str, Any]) -> dict[str, str]:
    """Return the variable with the prices of the pods, which is in the head of an own cluster."""
    head = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    env = head["containers"][0]["env"]
    prices = PodPrices.of({one["name"]: one.get("value", "") for one in env})
    if prices is None:
        return {}
    text = prices.model_copy(update={"warm": True}).model_dump_json(by_alias=True)
    return {PRICES_VARIABLE: text}


def unpacking_entrypoint(files: dict[str, str], variables: Mapping[str, str]) -> str:
    """Return the command line of a driver that first writes its files into the empty directory.

    The driver gets the variables, and the digests of the files.

    Ray passes the metadata of a job to its driver as JSON in an environment variable. The files
    have no syntax of JSON or of a shell, because they are encoded. The driver checks their digests.
    """
    digests = {DIGEST_VARIABLES[name]: digest_of(file) for name, file in files.items()}
    given = [f"{name}={quote(text)}" for name, text in {**digests, **variables}.items()]
    value = f's/.*"{FILES}": "\\([^"]*\\)".*/\\1/'
    find = f"printf %s \"$RAY_JOB_CONFIG_JSON_ENV_VAR\" | sed '{value}'"
    unpack = f"{find} | base64 -d | tar -xzm -C {JOB_DIRECTORY}"
    return f"{unpack} && exec env {' '.join(given)} {entrypoint()}"


def packed(files: dict[str, str]) -> str:
    """Return the files as a compressed tar archive in base64. Equal files give equal texts."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, file in files.items():
            content = file.encode()
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return b64encode(gzipped(archive.getvalue())).decode()
