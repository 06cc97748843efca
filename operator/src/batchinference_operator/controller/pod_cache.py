"""The informer cache of the jobs' pods, and of how pods ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from batchinference_operator.controller.keys import Key, parent_of
from batchinference_operator.status.crashes import Crash, crash_of
from batchinference_operator.status.pods import Disruption, PodView
from batchinference_operator.status.ray_job import Object, RayJobView

STALE_SECONDS = 300.0
"""Seconds that the watch may be silent about an object before it is stale and is read live. A watch
that starts over reports what exists, not what was deleted in the meantime."""
MAX_CRASHES = 1024
"""Maximum number of crashes kept per cluster, for heads and for workers each."""
RayJobOfCluster = Callable[[Key, str], RayJobView | None]
"""Returns the RayJob of a job whose RayCluster has this name, or None."""


class PodCache:
    """The latest state of each pod, and the disruptions and crashes of each cluster's pods.

    `set_pod` and `delete_pod` return the key of the pod's job, or None if nothing changed.
    """

    def __init__(self, clock: Callable[[], float], ray_job_of_cluster: RayJobOfCluster) -> None:
        self._clock, self._ray_job_of_cluster = clock, ray_job_of_cluster
        self._pods: dict[Key, dict[str, tuple[PodView, float]]] = {}
        self._disruptions: dict[Key, dict[str, Disruption]] = {}
        self._crashes: dict[Key, dict[str, dict[str, Crash]]] = {}

    def set_pod(self, body: Object) -> Key | None:
        key, view = parent_of(body), PodView.of(body)
        known = self._pods.setdefault(key, {})
        before, _ = known.get(view.name, (None, 0.0))
        known[view.name] = view, self._clock()
        if view.disruption is not None:
            disruptions = self._disruptions.setdefault(key, {})
            disruptions[view.cluster] = _worse(disruptions.get(view.cluster), view.disruption)
        crashed = self._note_crash(key, view.cluster, crash_of(body))
        return None if view == before and not crashed else key

    def _note_crash(self, key: Key, cluster: str, crash: Crash | None) -> bool:
        """Record a crash and return whether it is new.

        The pod's uid identifies a crash: KubeRay may give the next pod the same name.
        """
        if crash is None:
            return False
        known = self._crashes.setdefault(key, {}).setdefault(cluster, {})
        count = sum(one.of_head == crash.of_head for one in known.values())
        if crash.pod in known or count >= MAX_CRASHES:
            return False
        known[crash.pod] = crash
        return True

    def delete_pod(self, body: Object) -> Key:
        """Record a pod's final state, then remove the pod.

        The event of the deletion may be the only one that says how the pod ended.
        """
        self.set_pod(body)
        key = parent_of(body)
        self._drop(key, body["metadata"]["name"])
        return key

    def _drop(self, key: Key, name: str) -> None:
        pod, _ = self._pods[key].pop(name)
        if not self._pods[key]:
            del self._pods[key]
        if self._ray_job_of_cluster(key, pod.cluster) is None:
            self.forget_cluster(key, pod.cluster)

    def forget_job(self, key: Key) -> None:
        """Forget everything about a job that is gone."""
        self._pods.pop(key, None)
        self._disruptions.pop(key, None)
        self._crashes.pop(key, None)

    def forget_cluster(self, key: Key, cluster: str) -> None:
        """Forget the disruptions and crashes of a cluster that is gone."""
        known: tuple[dict[Key, dict[str, Any]], ...] = (self._disruptions, self._crashes)
        for each in known:
            of_job = each.get(key, {})
            of_job.pop(cluster, None)
            if not of_job:
                each.pop(key, None)

    def of(self, key: Key) -> tuple[PodView, ...]:
        """Return the pods of a job, sorted by name.

        Stale pods without a live RayJob are omitted: the watch must have missed their deletion.
        """
        return tuple(self._existing(key))

    def _existing(self, key: Key) -> Iterator[PodView]:
        now = self._clock()
        for _, (pod, last_event) in sorted(self._pods.get(key, {}).items()):
            ray_job = self._ray_job_of_cluster(key, pod.cluster)
            if (ray_job is not None and not ray_job.ended) or now - last_event <= STALE_SECONDS:
                yield pod

    def disruptions(self, key: Key, cluster: str) -> tuple[Disruption, ...]:
        """Return the decisive disruption of a cluster's pods, including deleted pods."""
        disruption = self._disruptions.get(key, {}).get(cluster)
        return () if disruption is None else (disruption,)

    def crashes(self, key: Key, cluster: str) -> tuple[Crash, ...]:
        """Return the crashes of a cluster's pods, in the order in which they were seen."""
        return tuple(self._crashes.get(key, {}).get(cluster, {}).values())

    def stale_pods(self, key: Key) -> dict[str, PodView]:
        """Return all pods of a job, by name, if one that has not ended is stale; else nothing.

        Pods that have ended do not matter, because they are no longer charged.
        """
        now, known = self._clock(), self._pods.get(key, {})
        stale = any(
            pod.ended is None and now - last_event > STALE_SECONDS
            for pod, last_event in known.values()
        )
        return {name: pod for name, (pod, _) in known.items()} if stale else {}

    def refresh(self, key: Key, stale: dict[str, PodView], there: set[str]) -> tuple[PodView, ...]:
        """Drop the stale pods that a live read did not find, and return the pods of the job.

        `there` has the names that the live read found. It is ignored for a pod about which the
        watch has reported something newer in the meantime.
        """
        for name, pod in stale.items():
            if self._pods.get(key, {}).get(name, (None,))[0] is not pod:
                continue
            if name in there:
                self._pods[key][name] = pod, self._clock()
            else:
                self._drop(key, name)
        return self.of(key)


def _worse(known: Disruption | None, new: Disruption) -> Disruption:
    """Return the disruption that explains the end of an attempt: of the head, else the later."""
    return known if known is not None and known.of_head and not new.of_head else new
