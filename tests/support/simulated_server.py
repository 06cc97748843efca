"""An API server that a test leads call by call, and watches that tell of it late or not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from batchinference.rendering import NAME_LABEL
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.runtime.gateway import Conflict, Refused, Unreachable
from batchinference_operator.status.observations import RayJobView
from support.fake_cluster import merged
from support.operator_objects import NAMESPACE
from support.virtual_time import BEGINNING

Object = dict[str, Any]
WATCHED = ("BatchInference", "RayJob", "Pod")
FOREGROUND = "foregroundDeletion"
BEFORE: dict[str, Callable[[], Exception]] = {
    "conflict": lambda: Conflict("the object has been modified"),
    "refused": lambda: Refused("403: exceeded quota"),
    "unreachable": lambda: Unreachable("connection reset"),
}
AFTER: dict[str, Callable[[], Exception]] = {
    "no answer": lambda: Unreachable("504: gateway timeout"),
}
FAULTS = (*BEFORE, *AFTER)
"""How a call may fail: before the server has served it, and afterwards."""


@dataclass
class Call:
    """A call that the operator waits for. What is sent into it is the fault that it meets."""

    name: str

    def __await__(self) -> Generator[Call, str | None, str | None]:
        fault = yield self
        if fault in BEFORE:
            raise BEFORE[fault]()
        return fault


@dataclass
class SimulatedServer:
    """Objects are never changed, only replaced. `news` is what each watch has yet to tell."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    news: dict[str, deque[tuple[str | None, Object]]] = field(
        default_factory=lambda: {kind: deque() for kind in WATCHED}
    )
    seconds: float = 0.0
    version: int = 0
    on_status: Callable[[Object, Object], None] = lambda before, after: None
    """Is told of each BatchInference whose status is written, before and after."""

    def now(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.seconds)

    def get(self, kind: str, name: str) -> Object | None:
        return self.objects.get((kind, name))

    def all(self, kind: str) -> list[Object]:
        return [body for (each, _), body in list(self.objects.items()) if each == kind]

    def put(self, body: Object) -> Object:
        """Create or replace an object."""
        key = body["kind"], body["metadata"]["name"]
        self.version += 1
        first = {
            "uid": f"{self.version:08d}-uid",
            "creationTimestamp": stamp(self.now()),
            "generation": 1,
            "namespace": NAMESPACE,
        }
        metadata = {**first, **body["metadata"], "resourceVersion": str(self.version)}
        event = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = {**body, "metadata": metadata}
        self._tell(event, self.objects[key])
        return self.objects[key]

    def change(self, body: Object, **patch: Any) -> Object:
        """Merge a patch into an object, as it stands now."""
        return self.put(merged(self.objects[body["kind"], body["metadata"]["name"]], patch))

    def delete(self, body: Object, *, foreground: bool = False) -> None:
        """Delete an object; one with a finalizer is only marked."""
        known = self.get(body["kind"], body["metadata"]["name"])
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
            return
        metadata = known["metadata"]
        finalizers = [*metadata.get("finalizers", []), *([FOREGROUND] if foreground else [])]
        if not finalizers:
            self._gone(known)
        elif "deletionTimestamp" not in metadata:
            going = {"deletionTimestamp": stamp(self.now()), "finalizers": finalizers}
            self.change(known, metadata=going)

    def let_go(self, body: Object) -> None:
        """Take the finalizers off an object that was deleted."""
        self._gone(body)

    def collect(self) -> None:
        """The garbage collector: what belongs to an object goes when the object goes, or before
        it if the user has asked for that."""
        for body in list(self.objects.values()):
            if FOREGROUND in body["metadata"].get("finalizers", []):
                below = list(self._below(body))
                for one in below:
                    self.delete(one)
                if not below:
                    self._gone(body)
        uids = {body["metadata"]["uid"] for body in self.objects.values()}
        for body in list(self.objects.values()):
            owners = body["metadata"].get("ownerReferences", [])
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.delete(body)

    def begin_anew(self, kind: str) -> None:
        """A watch that lost its connection tells what exists, not what has gone meanwhile."""
        self.news[kind].clear()
        self.news[kind].extend((None, body) for body in self.all(kind) if _is_watched(body))

    def _below(self, body: Object) -> Iterator[Object]:
        for one in self.objects.values():
            if any(owner["uid"] == body["metadata"]["uid"]
                   for owner in one["metadata"].get("ownerReferences", [])):  # fmt: skip
                yield one

    def _gone(self, body: Object) -> None:
        self._tell("DELETED", self.objects.pop((body["kind"], body["metadata"]["name"])))

    def _tell(self, event: str, body: Object) -> None:
        if _is_watched(body):
            self.news[body["kind"]].append((event, body))


def _is_watched(body: Object) -> bool:
    labelled = NAME_LABEL in body["metadata"].get("labels", {})
    return body["kind"] == "BatchInference" or (body["kind"] in WATCHED and labelled)


@dataclass
class SimulatedGateway:
    """The operator's gateway to that server. Each call waits until the test lets it go on."""

    server: SimulatedServer

    async def create(self, body: Object) -> Object | None:
        fault = await Call(f"create {body['kind']}")
        known = self.server.get(body["kind"], body["metadata"]["name"])
        made = self.server.put(body) if known is None else None
        _answered(fault)
        return made

    async def all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        _answered(await Call(f"list {kind}"))
        for body in self.server.all(kind):
            yield body

    async def pods(self, namespace: str, job: str) -> set[str]:
        fault = await Call("list Pods")
        _answered(fault)
        return {body["metadata"]["name"] for body in self.server.all("Pod")}

    async def ray_job(self, namespace: str, name: str) -> Object | None:
        fault = await Call("get RayJob")
        _answered(fault)
        return self.server.get("RayJob", name)

    async def warning(self, namespace: str, kind: str, name: str) -> str:
        _answered(await Call("get Events"))
        return ""

    async def why_queued(self, namespace: str, seen: RayJobView) -> str:
        _answered(await Call("get Workload"))
        return ""

    async def release(self, namespace: str, seen: RayJobView) -> None:
        await self._remove_cluster(seen)
        fault = await Call("release")
        body = self.server.get("RayJob", seen.name)
        if body is not None:
            self.server.change(body, spec={"ttlSecondsAfterFinished": 0})
        _answered(fault)

    async def remove(self, namespace: str, seen: RayJobView) -> None:
        fault = await Call("remove RayJob")
        body = self.server.get("RayJob", seen.name)
        if body is not None and body["metadata"]["uid"] == seen.uid:
            self.server.delete(body)
        _answered(fault)
        await self._remove_cluster(seen)

    async def _remove_cluster(self, seen: RayJobView) -> None:
        if seen.cluster:
            fault = await Call("remove RayCluster")
            cluster = self.server.get("RayCluster", seen.cluster)
            if cluster is not None:
                self.server.delete(cluster)
            _answered(fault)

    async def post_event(self, body: Object) -> bool:
        raise AssertionError("Events are posted apart from the work on jobs")

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Object
    ) -> Object | None:
        fault = await Call("patch status")
        known = self.server.get("BatchInference", name)
        if known is not None:
            if known["metadata"]["resourceVersion"] != resource_version:
                raise Conflict("the object has been modified")
            self.server.on_status(known, self.server.change(known, status=patch))
        _answered(fault)
        return self.server.get("BatchInference", name)


def _answered(fault: str | None) -> None:
    if fault in AFTER:
        raise AFTER[fault]()
