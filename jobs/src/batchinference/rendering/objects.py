"""The small objects beside the RayJob: the job's file and the token of its Ray cluster."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from batchinference.rendering.names import Names
from batchinference.spec.job import API_VERSION, KIND, LIFE, BatchInference
from batchinference.spec.problems import Problem, SpecError

JOB_FILE = "job.yaml"
JOB_DIRECTORY = "/etc/batchinference"
JOB_PATH = f"{JOB_DIRECTORY}/{JOB_FILE}"
"""Where the driver finds the job file."""
DIGEST_VARIABLE = "BATCHINFERENCE_JOB_SHA256"
"""Environment variable of the head with the SHA-256 of the job file. It is part of the RayJob, so
whoever may only write ConfigMaps cannot make the driver run another job."""
TOKEN_KEY = "auth_token"  # noqa: S105
"""The key under which KubeRay looks for the token."""


@dataclass(frozen=True)
class Owner:
    """The object that others belong to and are deleted with: a BatchInference, unless told
    otherwise."""

    name: str
    uid: str
    kind: str = KIND
    api_version: str = API_VERSION

    def reference(self) -> dict[str, Any]:
        """Without blockOwnerDeletion, for which OpenShift asks the right to set finalizers."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


def metadata(
    name: str, namespace: str | None, labels: dict[str, str], owner: Owner | None
) -> dict[str, Any]:
    """Metadata of a child. Without an owner it lives on its own."""
    result: dict[str, Any] = {"name": name, "labels": labels}
    if namespace:
        result["namespace"] = namespace
    if owner is not None:
        result["ownerReferences"] = [owner.reference()]
    return result


def config_map(job: BatchInference, names: Names, owner: Owner | None) -> dict[str, Any]:
    """The job as the driver reads it. It never changes: another file gets another ConfigMap."""
    file = job_file(job, names.uid)
    name = names.config_map(digest_of(file))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(name, job.metadata.namespace, names.labels, owner),
        "immutable": True,
        "data": {JOB_FILE: file},
    }


def digest_of(file: str) -> str:
    """The SHA-256 of a job file, in hexadecimal digits."""
    return hashlib.sha256(file.encode()).hexdigest()


def check_mounted_file(path: str, file: str, environment: Mapping[str, str]) -> None:
    """Raises SpecError if the job file that is mounted in the head is not the one that the RayJob
    was created for. Any other file is the choice of the user who names it."""
    expected = environment.get(DIGEST_VARIABLE)
    if path == JOB_PATH and expected is not None and digest_of(file) != expected:
        message = (
            f"the file's SHA-256 is {digest_of(file)} and the RayJob was created for {expected}: "
            "its ConfigMap was replaced. Delete that ConfigMap and create the BatchInference again"
        )
        raise SpecError([Problem("", message)])


def job_file(job: BatchInference, uid: str) -> str:
    """A job's work as YAML, with that of its metadata by which its driver is told from others."""
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": job.metadata.name,
            "namespace": job.metadata.namespace,
            "uid": uid,
        },
        "spec": job.spec.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude=set(LIFE)
        ),
    }
    # ASCII alone: PyYAML loses some line breaks of Unicode that it writes as they are
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False)


def dump(model: BaseModel) -> dict[str, Any]:
    """A part of the specification as Kubernetes takes it."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def token_secret(
    namespace: str | None, names: Names, token: str, owner: Owner | None
) -> dict[str, Any]:
    """The token with which KubeRay, the operator and Ray's own processes talk to the cluster.

    It belongs to the RayJob, not to the BatchInference: KubeRay still needs it when it stops the
    job of a RayJob that is being deleted, and would otherwise wait for it for ever.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(names.secret, namespace, names.labels, owner),
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }
