"""The RayJob of one attempt.

It is created once and never changed afterwards: Kueue writes into its spec.
"""

from __future__ import annotations

import shlex
from typing import Any

from batchinference.plan import WorkerGroup, plan_for_cluster
from batchinference.plan.groups import GROUP_LABEL, HEAD_GROUP
from batchinference.rendering.check import check_cluster
from batchinference.rendering.devices import start_parameters
from batchinference.rendering.kueue import queued
from batchinference.rendering.names import ATTEMPT_LABEL, Names
from batchinference.rendering.objects import JOB_FILE, Owner, metadata
from batchinference.rendering.pods import (
    JOB_DIRECTORY,
    RESTRICTED,
    head_template,
    worker_template,
)
from batchinference.spec.durations import seconds_of
from batchinference.spec.job import BatchInference
from batchinference.spec.problems import SpecError

RAY_API_VERSION = "ray.io/v1"
RAY_JOB = "RayJob"
RAY_VERSION = "2.60.0"
RAY_LOGS = "/tmp/ray/session_latest/logs"  # noqa: S108 - Ray's own place in its pods
"""Ray's dashboard serves the files of this directory, also when the driver has gone."""
KEEP_SECONDS = 600
"""How long a finished cluster waits at least for the operator to read the driver's report. Its
workers, being idle, go before that; the operator ends the wait when it has read the report and
`ttl.cluster` is over."""
IDLE_SECONDS = 60
_AUTOSCALER = {"cpu": "500m", "memory": "512Mi"}
_AUTOSCALER_REQUESTS = {"cpu": "50m", "memory": "256Mi"}


def ray_job(job: BatchInference, names: Names, owner: Owner | None) -> dict[str, Any]:
    """The RayJob of a job whose cluster settings are complete.

    Raises SpecError when the job could not run on a cluster.
    """
    groups = plan_for_cluster(job.spec).groups
    if problems := check_cluster(job.spec, groups):
        raise SpecError(problems)
    labels = {**names.labels, ATTEMPT_LABEL: str(names.attempt)}
    body = {
        "apiVersion": RAY_API_VERSION,
        "kind": RAY_JOB,
        "metadata": metadata(names.ray_job, job.metadata.namespace, labels, owner),
        "spec": {
            "submissionMode": "HTTPMode",
            "entrypoint": entrypoint(),
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": max(KEEP_SECONDS, seconds_of(job.spec.ttl.cluster)),
            "rayClusterSpec": _ray_cluster(job, names, groups),
        },
    }
    return queued(body, job.spec.cluster)


def entrypoint() -> str:
    """The driver's command line. Nothing of the job is in it, so nothing needs quoting."""
    command = ["batchinference", "run", "--address", "auto", "--report-directory", RAY_LOGS]
    return shlex.join([*command, f"{JOB_DIRECTORY}/{JOB_FILE}"])


def _ray_cluster(
    job: BatchInference, names: Names, groups: tuple[WorkerGroup, ...]
) -> dict[str, Any]:
    cluster = job.spec.cluster
    return {
        "rayVersion": RAY_VERSION,
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "idleTimeoutSeconds": IDLE_SECONDS,
            "resources": {"limits": _AUTOSCALER, "requests": _AUTOSCALER_REQUESTS},
            "securityContext": RESTRICTED,
        },
        "authOptions": {"mode": "token", "secretName": names.secret},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104
            "labels": {GROUP_LABEL: HEAD_GROUP},
            "template": head_template(cluster, names),
        },
        "workerGroupSpecs": [
            {
                "groupName": group.name,
                # KubeRay waits for all of `replicas` before it submits the job
                "replicas": group.min,
                "minReplicas": group.min,
                "maxReplicas": group.max,
                "rayStartParams": start_parameters(group),
                "labels": {GROUP_LABEL: group.name},
                "template": worker_template(cluster, names, group),
            }
            for group in groups
        ],
    }
