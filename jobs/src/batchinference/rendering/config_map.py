"""Renders the ConfigMap of an attempt, which has the job and plan files of its driver. Also renders
the Secret with the token of its cluster."""

import hashlib
from collections.abc import Mapping
from typing import Any

import yaml

from batchinference.rendering.names import Names, Owner, metadata
from batchinference.spec.job import API_VERSION, KIND, OPERATOR_FIELDS, BatchInference
from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.resources import OF_PODS

JOB_FILE = "job.yaml"
PLAN_FILE = "plan.json"
JOB_DIRECTORY = "/etc/batchinference"
JOB_PATH = f"{JOB_DIRECTORY}/{JOB_FILE}"
"""Path of the job file in the head pod, where the driver runs."""
PLAN_PATH = f"{JOB_DIRECTORY}/{PLAN_FILE}"
DIGEST_VARIABLES = {JOB_FILE: "BATCHINFERENCE_JOB_SHA256", PLAN_FILE: "BATCHINFERENCE_PLAN_SHA256"}
"""Environment variables of the head with the SHA-256 of each file, for a check by the driver. A
user who can write only ConfigMaps cannot make the driver run another job."""
_NOT_FOR_DRIVERS: dict[str, Any] = {
    "cluster": {
        **dict.fromkeys(("ray_start_params", "idle_timeout", "termination_grace_period"), True),
        **dict.fromkeys(("labels", "annotations", "affinity", "topology_spread_constraints"), True),
        **dict.fromkeys(("scheduler_name", "fs_group", "ephemeral_storage"), True),
        "head": {"node_selector", "tolerations", "ephemeral_storage"},
        "profiles": {"__all__": {"idle_timeout"}},
    },
    "steps": {"__all__": {"resources": OF_PODS}},
}
"""The settings that only the operator reads, in addition to OPERATOR_FIELDS."""


def config_map(
    namespace: str | None, names: Names, files: dict[str, str], owner: Owner | None
) -> dict[str, Any]:
    """Return the immutable ConfigMap with the files of an attempt."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(config_map_name(names, files), namespace, names.labels, owner),
        "immutable": True,
        "data": files,
    }


def config_map_name(names: Names, files: dict[str, str]) -> str:
    """Return the name of the ConfigMap with these files. It contains their digest, because the spec
    may change between the creation of the ConfigMap and that of the RayJob."""
    return names.config_map(digest_of("".join(files.values())))


def digest_of(file: str) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(file.encode()).hexdigest()


def check_mounted_file(path: str, file: str, environment: Mapping[str, str]) -> None:
    """Raise SpecError if a file in JOB_DIRECTORY is not the file that the RayJob was created for.
    Files elsewhere are the choice of the user, and are not checked."""
    directory, _, name = path.rpartition("/")
    expected = environment.get(DIGEST_VARIABLES.get(name, ""))
    if directory == JOB_DIRECTORY and expected is not None and digest_of(file) != expected:
        message = (
            f"the file's SHA-256 is {digest_of(file)} and the RayJob was created for {expected}: "
            "its ConfigMap was replaced. Delete that ConfigMap and create the BatchInference again"
        )
        raise SpecError([Problem("", message)])


def job_file(job: BatchInference, uid: str) -> str:
    """Return the job file as YAML: name, namespace, uid, and the spec without OPERATOR_FIELDS.
    Empty parameters and cluster settings are also omitted, and settings that the driver does not
    read. An older driver would refuse fields that it does not know."""
    dumped = job.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude=_NOT_FOR_DRIVERS
    )
    left_out = (*OPERATOR_FIELDS, *(() if job.spec.parameters else ("parameters",)))
    spec = {name: value for name, value in dumped.items() if name not in left_out}
    cluster = {name: value for name, value in spec["cluster"].items() if value not in ([], {})}
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.metadata.name, "namespace": job.metadata.namespace, "uid": uid},
        "spec": {**spec, "cluster": cluster},
    }
    # with allow_unicode, PyYAML would lose some Unicode line breaks
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False)


TOKEN_KEY = "auth_token"  # noqa: S105
"""The key of the token in the Secret, which KubeRay expects."""


def token_secret(
    namespace: str | None, names: Names, token: str, owner: Owner | None
) -> dict[str, Any]:
    """Return the Secret with the token that KubeRay, the operator and Ray use in the cluster. Its
    owner must be the RayJob. KubeRay needs the token to stop the Ray job of a RayJob that is being
    deleted. If the Secret was deleted first, KubeRay would wait forever."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(names.secret, namespace, names.labels, owner),
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }
