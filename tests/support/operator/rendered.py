"""Renders a job to the Kubernetes objects that run it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from batchinference.rendering import (
    RAY_API_VERSION,
    RAY_JOB,
    Names,
    Owner,
    attempt_objects,
    token_secret,
    with_platform_defaults,
)
from batchinference.spec import BatchInference
from batchinference.spec.cluster import Cluster
from batchinference.spec.platform_defaults import NO_DEFAULTS, PlatformDefaults

Object = dict[str, Any]

UID = "5f9d1c3a-7b2e-4d8f-9a61-0c2b4e6d8f13"
RAY_JOB_UID = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
TOKEN = "the-token-of-this-ray-cluster"
PLATFORM = Cluster(image="registry.example/default:0")
"""Platform defaults that contain only an image."""


@dataclass(frozen=True)
class Rendered:
    """The objects of one attempt at a job."""

    job: BatchInference
    config_map: Object
    secret: Object
    ray_job: Object

    @property
    def objects(self) -> list[Object]:
        return [self.config_map, self.secret, self.ray_job]

    @property
    def cluster(self) -> Object:
        return self.ray_job["spec"]["rayClusterSpec"]

    @property
    def head(self) -> Object:
        return self.cluster["headGroupSpec"]

    @property
    def workers(self) -> dict[str, Object]:
        """The worker groups by their names."""
        return {group["groupName"]: group for group in self.cluster["workerGroupSpecs"]}

    @property
    def pods(self) -> list[Object]:
        """The pod templates of the head and of all worker groups."""
        return [self.head["template"], *(group["template"] for group in self.workers.values())]

    @property
    def containers(self) -> Iterator[Object]:
        for pod in self.pods:
            yield from pod["spec"]["containers"]


def render(
    job: BatchInference, defaults: Cluster = PLATFORM, *, attempt: int = 1, owned: bool = True
) -> Rendered:
    """Return the objects of a job. Raises SpecError for a job that a cluster cannot run."""
    complete = with_platform_defaults(job, defaults)
    name, namespace = job.metadata.name, job.metadata.namespace
    names, owner = Names(name, UID, attempt), Owner(name, UID) if owned else None
    attempt_of_it = Owner(names.ray_job, RAY_JOB_UID, RAY_JOB, RAY_API_VERSION) if owned else None
    platform = defaults if isinstance(defaults, PlatformDefaults) else NO_DEFAULTS
    config_map, ray_job = attempt_objects(complete, names, owner, 1 if owned else None, platform)
    secret = token_secret(namespace, names, TOKEN, attempt_of_it)
    return Rendered(complete, config_map, secret, ray_job)
