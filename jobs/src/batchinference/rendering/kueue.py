"""Adds the fields to a RayJob that Kueue requires in its queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchinference.plan import WorkerGroup
from batchinference.spec.cluster import Cluster
from batchinference.spec.problems import Problem

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"
MAX_GROUPS = 17
"""A Kueue Workload has at most 18 pod sets, one of which is for the head."""


def queued(ray_job: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Return the RayJob with the fields that Kueue requires, or unchanged if it has no queue.

    In a queue, the RayJob is suspended until it is admitted. It must be elastic if its cluster has
    Ray's autoscaler, because Kueue rejects others. A cluster of a fixed size is not: its pods need
    no gates. Without a queue, it must not be elastic: Kueue
    0.18 adds a scheduling gate to the pods of every elastic RayCluster, and removes it only from
    clusters that it admits.
    """
    if cluster.queue_name is None:
        return ray_job
    labels = {QUEUE_LABEL: cluster.queue_name}
    if cluster.queue_priority_class_name is not None:
        labels[PRIORITY_LABEL] = cluster.queue_priority_class_name
    metadata = ray_job["metadata"]
    scales = ray_job["spec"]["rayClusterSpec"].get("enableInTreeAutoscaling")
    elastic = {ELASTIC_ANNOTATION: "true"} if scales else {}
    annotations = {**metadata.get("annotations", {}), **elastic}
    return {
        **ray_job,
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], **labels},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {"suspend": True, **ray_job["spec"]},
    }


def check_queue(cluster: Cluster, groups: Sequence[WorkerGroup]) -> list[Problem]:
    """Return the problems with queue settings that Kueue would reject or ignore."""
    if cluster.queue_name is None and cluster.queue_priority_class_name is not None:
        message = "queuePriorityClassName needs a queue. Set spec.cluster.queueName"
        return [Problem("spec.cluster.queuePriorityClassName", message)]
    if cluster.queue_name is not None and len(groups) > MAX_GROUPS:
        message = (
            f"the job has {len(groups)} worker groups and Kueue takes {MAX_GROUPS}. Give steps the "
            "same resources, or leave the queue"
        )
        return [Problem("spec.cluster.queueName", message)]
    return []
