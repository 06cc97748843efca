"""The pods of jobs, and what befell them, as the watch has told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from batchinference_operator.runtime.keys import Key, parent_of
from batchinference_operator.status.crashes import Crash, crash_of
from batchinference_operator.status.observations import Object, RayJobView
from batchinference_operator.status.pods import Loss, PodView

DOUBT_SECONDS = 300.0
"""How long the watch may say nothing of an object before it is looked up. A watch that has to begin
anew tells what exists, not what has gone meanwhile."""
MAX_CRASHES = 1024
"""Crashes of heads, and of workers, that are kept of one cluster."""
Above = Callable[[Key, str], RayJobView | None]
"""The RayJob of a job whose RayCluster has this name."""


class PodCache:
    """What is put in or dropped has the key of its job returned, if that tells anything new."""

    def __init__(self, clock: Callable[[], float], above: Above) -> None:
        self._clock, self._above = clock, above
        self._pods: dict[Key, dict[str, tuple[PodView, float]]] = {}
        self._losses: dict[Key, dict[str, Loss]] = {}
        self._crashes: dict[Key, dict[str, dict[str, Crash]]] = {}

    def put(self, body: Object) -> Key | None:
        key, view = parent_of(body), PodView.of(body)
        known = self._pods.setdefault(key, {})
        before, _ = known.get(view.name, (None, 0.0))
        known[view.name] = view, self._clock()
        if view.loss is not None:
            losses = self._losses.setdefault(key, {})
            losses[view.cluster] = _worse(losses.get(view.cluster), view.loss)
        crashed = self._note_crash(key, view.cluster, crash_of(body))
        return None if view == before and not crashed else key

    def _note_crash(self, key: Key, cluster: str, crash: Crash | None) -> bool:
        """Count a crash; returns whether it is a new one. KubeRay may give the next pod the same
        name, so the uid counts."""
        if crash is None:
            return False
        known = self._crashes.setdefault(key, {}).setdefault(cluster, {})
        alike = sum(one.of_head == crash.of_head for one in known.values())
        if crash.pod in known or alike >= MAX_CRASHES:
            return False
        known[crash.pod] = crash
        return True

    def drop(self, body: Object) -> Key:
        """A pod that goes may have been told of its end in its last words alone."""
        self.put(body)
        key = parent_of(body)
        self._drop(key, body["metadata"]["name"])
        return key

    def _drop(self, key: Key, name: str) -> None:
        pod, _ = self._pods[key].pop(name)
        if not self._pods[key]:
            del self._pods[key]
        if self._above(key, pod.cluster) is None:
            self.forget_cluster(key, pod.cluster)

    def forget(self, key: Key) -> None:
        """All that is of a job, which has gone."""
        self._pods.pop(key, None)
        self._losses.pop(key, None)
        self._crashes.pop(key, None)

    def forget_cluster(self, key: Key, cluster: str) -> None:
        """What befell the pods of a cluster that is gone."""
        known: tuple[dict[Key, dict[str, Any]], ...] = (self._losses, self._crashes)
        for each in known:
            of_job = each.get(key, {})
            of_job.pop(cluster, None)
            if not of_job:
                each.pop(key, None)

    def of(self, key: Key) -> tuple[PodView, ...]:
        """By name; without those that must have gone unheard after the end of their RayJob."""
        return tuple(self._there(key))

    def _there(self, key: Key) -> Iterator[PodView]:
        now = self._clock()
        for _, (pod, heard) in sorted(self._pods.get(key, {}).items()):
            above = self._above(key, pod.cluster)
            if (above is not None and not above.ended) or now - heard <= DOUBT_SECONDS:
                yield pod

    def losses(self, key: Key, cluster: str) -> tuple[Loss, ...]:
        """What befell the pods of a cluster, also such as are gone."""
        loss = self._losses.get(key, {}).get(cluster)
        return () if loss is None else (loss,)

    def crashes(self, key: Key, cluster: str) -> tuple[Crash, ...]:
        """The pods of a cluster that ended by themselves, in the order in which they were seen."""
        return tuple(self._crashes.get(key, {}).get(cluster, {}).values())

    def doubtful(self, key: Key) -> dict[str, PodView]:
        """The pods of a job, by name, when the watch has said nothing for too long of one that
        costs something."""
        now, known = self._clock(), self._pods.get(key, {})
        doubt = any(
            pod.ended is None and now - heard > DOUBT_SECONDS for pod, heard in known.values()
        )
        return {name: pod for name, (pod, _) in known.items()} if doubt else {}

    def confirm(self, key: Key, seen: dict[str, PodView], there: set[str]) -> tuple[PodView, ...]:
        """Of pods that were in doubt keep those that are there, unless the watch has told something
        newer in between. Returns the pods that the job has now."""
        for name, pod in seen.items():
            if self._pods.get(key, {}).get(name, (None,))[0] is not pod:
                continue
            if name in there:
                self._pods[key][name] = pod, self._clock()
            else:
                self._drop(key, name)
        return self.of(key)


def _worse(known: Loss | None, new: Loss) -> Loss:
    """The loss that tells more of an attempt's end: that of the head, then the later one."""
    return known if known is not None and known.of_head and not new.of_head else new
