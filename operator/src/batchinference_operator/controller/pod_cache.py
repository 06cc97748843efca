"""The cached pods of each job, and the disruptions and crashes of each RayCluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from batchinference.rendering import CLUSTER_LABEL
from batchinference_operator.reconcile.job_view import JobKey, parent_of, stub_of
from batchinference_operator.status.pod_problems import Crash, Disruption, crash_of
from batchinference_operator.status.pod_view import PodView
from batchinference_operator.status.ray_job_view import Object, RayJobView

MAX_CRASHES = 1024
"""Maximum number of crashes that are kept for a cluster, separately for heads and workers."""
RayJobOfCluster = Callable[[JobKey, str], RayJobView | None]
"""Returns the RayJob of a job that uses the RayCluster with this name, or None."""


class PodCache:
    """The latest state of each pod, and the disruptions and crashes of the pods of each RayCluster.

    Disruptions and crashes are kept until the RayJob of the cluster is gone, because KubeRay
    deletes pods that have ended.
    """

    def __init__(self, ray_job_of_cluster: RayJobOfCluster) -> None:
        self._ray_job_of_cluster = ray_job_of_cluster
        self._pods: dict[JobKey, dict[str, PodView]] = {}
        self._parents: dict[tuple[str, str], JobKey] = {}
        """The job of each pod, by the namespace and name of the pod."""
        self._disruptions: dict[JobKey, dict[str, Disruption]] = {}
        self._crashes: dict[JobKey, dict[str, dict[str, Crash]]] = {}

    def set_pod(self, body: Object) -> JobKey | None:
        """Store a pod, its disruption and crash. Return the key of its job; None if unchanged."""
        key, view = parent_of(body), PodView.of(body)
        former = self._parents.get((key[0], view.name), key)
        if former != key:  # a user has changed the label that names the job
            self._drop(former, view.name)
        self._parents[key[0], view.name] = key
        known = self._pods.setdefault(key, {})
        before, known[view.name] = known.get(view.name), view
        disruptions = self._disruptions.setdefault(key, {})
        if view.disruption is not None:
            disruptions[view.cluster] = _decisive(disruptions.get(view.cluster), view.disruption)
        elif (lost := disruptions.get(view.cluster)) is not None and _replaces(view, lost):
            disruptions[view.cluster] = replace(lost, replaced=True)
        new_crash = self._record_crash(key, view.cluster, crash_of(body))
        return None if view == before and not new_crash else key

    def _record_crash(self, key: JobKey, cluster: str, crash: Crash | None) -> bool:
        """Record a crash, unless it is known or there are too many. Return whether it is recorded.
        The uid of its pod identifies a crash, because KubeRay may use the name of the pod again."""
        if crash is None:
            return False
        crashes = self._crashes.setdefault(key, {}).setdefault(cluster, {})
        count = sum(one.of_head == crash.of_head for one in crashes.values())
        if crash.pod in crashes or count >= MAX_CRASHES:
            return False
        crashes[crash.pod] = crash
        return True

    def delete_pod(self, body: Object) -> JobKey:
        """Forget a deleted pod, and return the key of its job."""
        key, name = parent_of(body), body["metadata"]["name"]
        if name in self._pods.get(key, {}):
            self._drop(key, name)
        return key

    def _drop(self, key: JobKey, name: str) -> None:
        pod = self._pods[key].pop(name)
        del self._parents[key[0], name]
        if not self._pods[key]:
            del self._pods[key]
        if self._ray_job_of_cluster(key, pod.cluster) is None:
            self.forget_cluster(key, pod.cluster)

    def stubs(self, namespace: str) -> list[Object]:
        """Return a stub (`stub_of`) of each pod in a namespace ("" for all namespaces)."""
        pods_of_jobs = ((key, pod) for key, pods in self._pods.items() for pod in pods.values())
        return [
            stub_of(key, pod.name, **{CLUSTER_LABEL: pod.cluster})
            for key, pod in pods_of_jobs
            if namespace in ("", key[0])
        ]

    def forget_job(self, key: JobKey) -> None:
        """Forget everything about a job that is gone."""
        for name in self._pods.pop(key, {}):
            del self._parents[key[0], name]
        self._disruptions.pop(key, None)
        self._crashes.pop(key, None)

    def forget_cluster(self, key: JobKey, cluster: str) -> None:
        """Forget the disruptions and crashes of a cluster that is gone."""
        records: tuple[dict[JobKey, dict[str, Any]], ...] = (self._disruptions, self._crashes)
        for each in records:
            of_job = each.get(key, {})
            of_job.pop(cluster, None)
            if not of_job:
                each.pop(key, None)

    def pods_of(self, key: JobKey) -> tuple[PodView, ...]:
        """Return the pods of a job, sorted by name."""
        return tuple(pod for _, pod in sorted(self._pods.get(key, {}).items()))

    def disruption(self, key: JobKey, cluster: str) -> Disruption | None:
        """Return the decisive disruption of a cluster's pods, maybe of a deleted pod."""
        return self._disruptions.get(key, {}).get(cluster)

    def crashes(self, key: JobKey, cluster: str) -> tuple[Crash, ...]:
        """Return the crashes of a cluster's pods in the order of observation."""
        return tuple(self._crashes.get(key, {}).get(cluster, {}).values())


def _replaces(pod: PodView, lost: Disruption) -> bool:
    """Return whether a pod is the head that replaces a lost head, even if it has no node yet."""
    return pod.is_head and not pod.deleting and lost.of_head and pod.uid != lost.pod


def _decisive(former: Disruption | None, new: Disruption) -> Disruption:
    """Return the disruption that takes precedence: one of a head, otherwise the newer one."""
    if former is None or former.pod == new.pod:
        return new if former is None else replace(new, replaced=former.replaced)
    return former if former.of_head and not new.of_head else new
