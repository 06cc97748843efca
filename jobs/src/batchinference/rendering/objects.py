"""The small objects beside the RayJob: the job's file and the token of its Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from batchinference.rendering.names import Names
from batchinference.spec.job import API_VERSION, KIND, BatchInference

JOB_FILE = "job.yaml"
TOKEN_KEY = "auth_token"  # noqa: S105
"""The key under which KubeRay looks for the token."""


@dataclass(frozen=True)
class Owner:
    """The BatchInference that objects belong to and are deleted with."""

    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def metadata(
    name: str, job: BatchInference, labels: dict[str, str], owner: Owner | None
) -> dict[str, Any]:
    """Metadata of a child. Without an owner it lives on its own."""
    result: dict[str, Any] = {"name": name, "labels": labels}
    if job.metadata.namespace:
        result["namespace"] = job.metadata.namespace
    if owner is not None:
        result["ownerReferences"] = [owner.reference()]
    return result


def config_map(job: BatchInference, names: Names, owner: Owner | None) -> dict[str, Any]:
    """The job as the driver reads it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(names.config_map, job, names.labels, owner),
        "data": {JOB_FILE: job_file(job)},
    }


def job_file(job: BatchInference) -> str:
    """A job as YAML, without what the API server has added to its metadata."""
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.metadata.name},
        "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def token_secret(
    job: BatchInference, names: Names, token: str, owner: Owner | None
) -> dict[str, Any]:
    """The token with which KubeRay, the operator and Ray's own processes talk to the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(names.secret, job, names.labels, owner),
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }
