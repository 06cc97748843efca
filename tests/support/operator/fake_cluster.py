"""A Kubernetes API server in memory, with the client and the watches of the operator.

The server maintains resourceVersions and refuses stale ones, keeps deleted objects that have
finalizers, and collects garbage by owner references. Two modules run the operator on it: harness.py
in virtual time, and stepped_operator.py call by call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from batchinference.rendering import NAME_LABEL, RELEASED, KubeRayDeadlines
from batchinference.spec.job import KIND
from batchinference.spec.schedule import SCHEDULE_LABEL
from batchinference_operator.controller.job_controller import JobController, stores
from batchinference_operator.kube.api_errors import Conflict
from batchinference_operator.kube.reflector import Store
from batchinference_operator.status.ray_job_view import RayJobView, owner_uid
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.objects import NAMESPACE, job_body
from support.operator.virtual_time import wall_clock

Object = dict[str, Any]
Watcher = Callable[[str | None, Object], None]
WATCHED = ("BatchInference", "RayJob", "Pod")
FOREGROUND = "foregroundDeletion"


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return the target with a merge patch applied, by the algorithm of RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result


@dataclass
class FakeCluster:
    """The objects of one namespace, by kind and name. Stored objects are never mutated, only
    replaced."""

    now: Callable[[], datetime] = wall_clock
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    version: int = 0
    finalizers_hold: bool = False
    """Whether deleted objects wait for `finalize`. Otherwise their finalizers are removed at
    once."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Messages of Warning Events, by the name of the object."""
    events: dict[str, Object] = field(default_factory=dict)
    """Posted Events, by name."""
    watchers: list[Watcher] = field(default_factory=list)
    history: list[tuple[str, Object]] = field(default_factory=list)
    """All statuses of all BatchInferences with their names, in order."""
    on_status: Callable[[Object, Object], None] = lambda before, after: None
    """Called with the BatchInference before and after each write of its status."""

    def get(self, kind: str, name: str) -> Object | None:
        return self.objects.get((kind, name))

    def list(self, kind: str) -> list[Object]:
        return [body for (each, _), body in self.objects.items() if each == kind]

    def put(self, body: Object) -> Object:
        """Create or replace an object."""
        known = self.get(body["kind"], body["metadata"]["name"])
        metadata = {
            "uid": f"{self.version + 1:08d}-uid",
            "creationTimestamp": to_rfc3339(self.now()),
            "generation": 1,
            "namespace": NAMESPACE,
            **(known["metadata"] if known else {}),
            **body["metadata"],
        }
        return self._store({**body, "metadata": metadata})

    def patch(self, kind: str, name: str, patch: Object) -> Object:
        """Apply a merge patch to an object."""
        return self._store(apply_merge_patch(self.objects[kind, name], patch))

    def apply(self, name: str = "job", **spec: Any) -> None:
        """Create a BatchInference."""
        body = job_body(name)
        self.put({**body, "spec": {**body["spec"], **spec}})

    def delete(
        self, kind: str, name: str, *, unseen: bool = False, foreground: bool = False
    ) -> None:
        """Delete an object, or mark it as deleted if it has finalizers. No watch sees the deletion
        if `unseen`."""
        body = self.objects[kind, name]
        finalizers = [
            *(body["metadata"].get("finalizers", []) if self.finalizers_hold else []),
            *([FOREGROUND] if foreground else []),
        ]
        if not finalizers:
            self._remove(body, unseen=unseen)
        elif "deletionTimestamp" not in body["metadata"]:
            marks = {"deletionTimestamp": to_rfc3339(self.now()), "finalizers": finalizers}
            self.patch(kind, name, {"metadata": marks})

    def finalize(self, kind: str) -> None:
        """Remove the objects of a kind that are marked as deleted."""
        for body in self.list(kind):
            if "deletionTimestamp" in body["metadata"]:
                self._remove(body)

    def collect_garbage(self) -> None:
        """Delete objects whose owners do not exist. In foreground deletion, delete owned objects
        first."""
        for body in list(self.objects.values()):
            if FOREGROUND in body["metadata"].get("finalizers", []):
                owned = list(self._owned_by(body))
                for each in owned:
                    self.delete(each["kind"], each["metadata"]["name"])
                if not owned:
                    self._remove(body)
        uids = {body["metadata"]["uid"] for body in self.objects.values()}
        for body in list(self.objects.values()):
            owners = body["metadata"].get("ownerReferences", [])
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.delete(body["kind"], body["metadata"]["name"])

    def status(self, name: str = "job") -> Object:
        """Return the status of a BatchInference."""
        body: Object = self.objects["BatchInference", name].get("status", {})
        return body

    def _owned_by(self, owner: Object) -> Iterator[Object]:
        for body in self.objects.values():
            references = body["metadata"].get("ownerReferences", [])
            if any(each["uid"] == owner["metadata"]["uid"] for each in references):
                yield body

    def _store(self, body: Object) -> Object:
        key = body["kind"], body["metadata"]["name"]
        event = "MODIFIED" if key in self.objects else "ADDED"
        self.version += 1
        stored = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        self.objects[key] = stored
        if stored["kind"] == "BatchInference" and "status" in stored:
            self.history.append((key[1], stored["status"]))
        self._notify(event, stored)
        return stored

    def _remove(self, body: Object, *, unseen: bool = False) -> None:
        removed = self.objects.pop((body["kind"], body["metadata"]["name"]))
        if not unseen:
            self._notify("DELETED", removed)

    def _notify(self, event: str, body: Object) -> None:
        for watcher in list(self.watchers):
            watcher(event, body)


def labels_of(body: Object) -> dict[str, str]:
    labels: dict[str, str] = body["metadata"].get("labels", {})
    return labels


def is_watched(body: Object) -> bool:
    """Return whether the operator watches an object: all BatchInferences, and RayJobs and pods that
    have its label."""
    if body["kind"] == "BatchInference":
        return True
    return body["kind"] in WATCHED and NAME_LABEL in labels_of(body)


class FakeWatches:
    """One watch per kind. Events wait until they are delivered to a controller."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.controller: JobController | None = None
        self.pending: dict[str, deque[tuple[str | None, Object]]] = {
            kind: deque() for kind in WATCHED
        }
        self.listed: set[str] = set()
        """The kinds whose first list has been delivered."""
        cluster.watchers.append(self.enqueue)

    def enqueue(self, event: str | None, body: Object) -> None:
        if is_watched(body):
            self.push(body["kind"], event, body)

    def push(self, kind: str, event: str | None, body: Object) -> None:
        self.pending[kind].append((event, body))

    def relist(self, kind: str) -> None:
        """Restart a watch with a list. Only kopf's watch of jobs misses deletions."""
        self.pending[kind].clear()
        for body in self.cluster.list(kind):
            self.enqueue(None, body)
        if kind in self.stores:
            listed = [body["metadata"]["name"] for body in self.cluster.list(kind)]
            for body in self.stores[kind].known(NAMESPACE):
                if body["metadata"]["name"] not in listed:
                    self.push(kind, "DELETED", body)
            self.push(kind, "LISTED", {"version": str(self.cluster.version)})

    def lose(self) -> None:
        """Forget the objects of the reflectors, as after watches that were refused for too long."""
        for kind, store in self.stores.items():
            self.pending[kind].clear()
            self.listed.discard(kind)
            for body in store.known(NAMESPACE):
                store.delete(body)

    def list_what_is_unlisted(self) -> None:
        """Restart the watches that were lost."""
        for kind in self.stores:
            if kind not in self.listed:
                self.relist(kind)

    @property
    def stores(self) -> dict[str, Store]:
        """The stores of the kinds that reflectors watch."""
        return stores(self.controller) if self.controller is not None else {}

    def deliver(self, kind: str, *, repeat: bool = False) -> None:
        """Deliver the next event of a watch. `repeat` keeps the event for another delivery."""
        pending = self.pending[kind]
        if pending and self.controller is not None:
            event, body = pending[0] if repeat else pending.popleft()
            if store := self.stores.get(kind):
                self._deliver_to(store, kind, event, body)
                return
            cache = self.controller.cache
            update = cache.delete_job if event == "DELETED" else cache.set_job
            self.controller.handle_event(update, body)

    def _deliver_to(self, store: Store, kind: str, event: str | None, body: Object) -> None:
        """Deliver an event as a reflector does."""
        if event == "LISTED":
            store.listed("", body["version"])
            if kind not in self.listed:
                self.listed.add(kind)
                store.requeue("")
            return
        if "kind" in body:  # a list reports only the identity of deleted objects
            store.put(body)
        if event == "DELETED":
            store.delete(body)

    def deliver_all(self) -> None:
        for kind in WATCHED:
            while self.pending[kind]:
                self.deliver(kind)


@dataclass
class FakeKubeApi:
    """The operator's gateway to a FakeCluster. `before` and `after` get the name of each call,
    before and after the cluster serves it, and may raise an exception."""

    cluster: FakeCluster
    before: Callable[[str], None] = lambda _: None
    after: Callable[[str], None] = lambda _: None

    async def begin(self, call: str) -> None:
        self.before(call)

    def end(self, call: str) -> None:
        self.after(call)

    async def create(self, body: Object) -> Object | None:
        call = f"create {body['kind']}"
        await self.begin(call)
        exists = self.cluster.get(body["kind"], body["metadata"]["name"]) is not None
        created = None if exists else self.cluster.put(body)
        self.end(call)
        return created

    async def list_all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        await self.begin(f"list {kind}")
        for body in self.cluster.list(kind):
            if is_watched(body):
                yield body
        self.end(f"list {kind}")

    async def get_object(self, kind: str, namespace: str, name: str) -> Object | None:
        await self.begin(f"get {kind}")
        stored = self.cluster.get(kind, name)
        self.end(f"get {kind}")
        return stored

    async def last_warning(self, namespace: str, kind: str, name: str) -> str:
        await self.begin("get Events")
        self.end("get Events")
        return self.cluster.warnings.get(name, "")

    async def queued_reason(self, namespace: str, seen: RayJobView) -> str:
        await self.begin("get Workload")
        self.end("get Workload")
        return self.cluster.warnings.get(seen.name, "")

    async def local_queues(self, namespace: str) -> str:
        return ". There is the LocalQueue gpu"

    async def release_cluster(self, namespace: str, seen: RayJobView) -> None:
        await self._remove_cluster(seen)
        await self.begin("release")
        if self.cluster.get("RayJob", seen.name):
            spec = {"ttlSecondsAfterFinished": 0, "clusterSelector": None}
            self.cluster.patch("RayJob", seen.name, {"spec": spec})
        self.end("release")

    async def remove_workers(self, namespace: str, seen: RayJobView) -> None:
        await self.begin("remove workers")
        for pod in self.cluster.list("Pod"):  # as KubeRay does at once
            labels = labels_of(pod)
            if labels["ray.io/cluster"] == seen.cluster and labels["ray.io/node-type"] == "worker":
                self.cluster.delete("Pod", pod["metadata"]["name"])
        self.end("remove workers")

    async def set_deadlines(
        self, namespace: str, seen: RayJobView, backstop: KubeRayDeadlines
    ) -> None:
        await self.begin("limit")
        ray_job = self.cluster.get("RayJob", seen.name)
        if ray_job is not None and ray_job["metadata"]["uid"] == seen.uid:
            self.cluster.patch("RayJob", seen.name, {"spec": backstop.fields})
        self.end("limit")

    async def release_pods(self, namespace: str, seen: RayJobView, now: str) -> None:
        await self.begin("release pods")
        ray_job = self.cluster.get("RayJob", seen.name)
        if ray_job is not None and ray_job["metadata"]["uid"] == seen.uid:
            self.cluster.patch("RayJob", seen.name, {"metadata": {"annotations": {RELEASED: now}}})
        self.end("release pods")

    async def delete_ray_job(self, namespace: str, seen: RayJobView) -> None:
        await self.begin("remove RayJob")
        ray_job = self.cluster.get("RayJob", seen.name)
        if ray_job is not None and ray_job["metadata"]["uid"] == seen.uid:
            self.cluster.delete("RayJob", seen.name)
        self.end("remove RayJob")
        await self._remove_cluster(seen)

    async def delete_job(self, namespace: str, name: str, uid: str, **version: str) -> None:
        await self.begin("delete BatchInference")
        metadata = (self.cluster.get("BatchInference", name) or {}).get("metadata", {})
        if metadata.get("uid") == uid and version.items() <= metadata.items():
            self.cluster.delete("BatchInference", name)
        self.end("delete BatchInference")

    async def _remove_cluster(self, seen: RayJobView) -> None:
        if seen.cluster:
            await self.begin("remove RayCluster")
            ray_cluster = self.cluster.get("RayCluster", seen.cluster)
            if ray_cluster is not None and owner_uid(ray_cluster, "RayJob") == seen.uid:
                self.cluster.delete("RayCluster", seen.cluster)
            self.end("remove RayCluster")

    async def post_event(self, body: Object) -> bool:
        await self.begin("post Event")
        known = self.cluster.events.get(body["metadata"]["name"], {"count": 0})
        self.cluster.events[body["metadata"]["name"]] = {**body, "count": known["count"] + 1}
        return known["count"] > 0

    async def list_runs(self, namespace: str, schedule: str, limit: int) -> AsyncIterator[Object]:
        await self.begin("list runs")
        jobs = self.cluster.list("BatchInference")
        self.end("list runs")
        runs = [one for one in jobs if labels_of(one).get(SCHEDULE_LABEL) == schedule]
        for one in runs[:limit]:
            yield one

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Object, *, kind: str = KIND
    ) -> Object | None:
        assert namespace == NAMESPACE
        await self.begin("patch status")
        known = self.cluster.get(kind, name)
        if known is not None:
            if known["metadata"]["resourceVersion"] != resource_version:
                raise Conflict("the object has been modified")
            written = self.cluster.patch(kind, name, {"status": patch})
            self.cluster.on_status(known, written)
        self.end("patch status")
        return self.cluster.get(kind, name)
