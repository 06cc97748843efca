"""The small objects beside the RayJob: the job's file and the token of its Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from batchinference.rendering.names import Names
from batchinference.spec.job import API_VERSION, KIND, LIFE, BatchInference

JOB_FILE = "job.yaml"
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
    """The job as the driver reads it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(names.config_map, job.metadata.namespace, names.labels, owner),
        "data": {JOB_FILE: job_file(job, names.uid)},
    }


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
