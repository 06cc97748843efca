"""Computes labels and annotations of a RayJob and its pods. Kueue, which queues the RayJob, reads
them, and so do schedulers that start the pods as a gang. Also checks the settings for Kueue."""

from collections.abc import Iterator, Sequence

from batchinference.plan import CPU_GROUP, WorkerGroup
from batchinference.rendering.names import Names
from batchinference.spec.cluster import Cluster
from batchinference.spec.pod_placement import Topology
from batchinference.spec.problems import Problem

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"
"""Annotation that makes a RayJob elastic. In a queue, Kueue accepts Ray's autoscaler only in an
elastic RayJob. No other RayJob gets the annotation: Kueue adds a scheduling gate to the pods of
every elastic RayCluster, and removes the gate only if Kueue admits the cluster."""
MAX_GROUPS = 17
"""Maximum number of worker groups. A Kueue Workload has at most 18 pod sets, one for the head."""
_POD_SET = "kueue.x-k8s.io/podset"


def queue_labels(cluster: Cluster) -> dict[str, str]:
    """Return the labels of a RayJob that Kueue requires; empty without a queue."""
    labels = {QUEUE_LABEL: cluster.queue_name, PRIORITY_LABEL: cluster.queue_priority_class_name}
    return {name: value for name, value in labels.items() if value and cluster.queue_name}


def gang_labels(cluster: Cluster, names: Names) -> dict[str, str]:
    """Return the labels of a RayJob whose pods Volcano, YuniKorn or KAI schedules as a gang.
    Volcano reads the priority of a gang from a label. Without an application id, YuniKorn would
    treat all jobs of a namespace as one application with one gang."""
    priority = cluster.priority_class_name
    return {
        "ray.io/gang-scheduling-enabled": "true",
        "yunikorn.apache.org/app-id": names.ray_job,
        **({"ray.io/priority-class-name": priority} if priority else {}),
    }


def topology_annotations(topology: Topology | None, group: WorkerGroup) -> dict[str, str]:
    """Return the annotations of a group's pods for topology-aware scheduling by Kueue. The group
    `cpu` gets none, because its pods exchange no data with each other."""
    if topology is None or group.name == CPU_GROUP:
        return {}
    if topology.mode == "Preferred":
        return {f"{_POD_SET}-preferred-topology": topology.level}
    if group.pods == 1:
        return {f"{_POD_SET}-required-topology": topology.level}
    return {
        f"{_POD_SET}-slice-required-topology": topology.level,
        f"{_POD_SET}-slice-size": str(group.pods),
    }


def check_queue(cluster: Cluster, groups: Sequence[WorkerGroup]) -> Iterator[Problem]:
    """Yield the problems with settings that Kueue would reject or ignore."""
    if cluster.queue_name is None:
        settings = {
            "queuePriorityClassName": cluster.queue_priority_class_name,
            "topology": cluster.topology,
        }
        for name in (name for name, value in settings.items() if value is not None):
            message = f"{name} needs a queue. Set spec.cluster.queueName"
            yield Problem(f"spec.cluster.{name}", message)
        return
    if len(groups) > MAX_GROUPS:
        message = (
            f"the job has {len(groups)} worker groups and Kueue takes {MAX_GROUPS}. Give steps the "
            "same resources, or remove queueName"
        )
        yield Problem("spec.cluster.queueName", message)
    scale = scaling_groups(groups)
    if cluster.topology is not None and scale:
        message = (
            f"Kueue cannot place pods in a job that scales (groups {', '.join(scale)}). Set "
            "replicas.min of each step to its replicas.max, and workers.min to workers.max"
        )
        yield Problem("spec.cluster.topology", message)


def scaling_groups(groups: Sequence[WorkerGroup]) -> list[str]:
    """Return the names of the groups whose number of pods can change."""
    return [group.name for group in groups if group.min < group.max]
