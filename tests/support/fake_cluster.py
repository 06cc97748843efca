"""An API server in memory, as far as the operator asks anything of it, and a KubeRay to go with it.

It keeps resourceVersions and refuses stale ones, so that what the operator gets away with here it
gets away with at a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchinference.rendering import ATTEMPT_LABEL, NAME_LABEL
from batchinference.spec.report import JobState
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.controller import Controller, Take
from batchinference_operator.runtime.driver import Answer
from batchinference_operator.runtime.gateway import Conflict
from batchinference_operator.runtime.signals import Signals
from batchinference_operator.status.observations import RayJobView
from support.operator_objects import NAMESPACE, RUNNING, SETTINGS, job_body, report
from support.virtual_time import clock, until, wall_clock

Object = dict[str, Any]
Listener = Callable[[str | None, Object], None]


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, word for word."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


@dataclass
class FakeCluster:
    """Objects by kind and name, all of them in one namespace."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    version: int = 0
    kuberay_away: bool = False
    """While it is, a RayJob that it has touched is not gone when it is deleted."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What Events say of pods, by name."""
    listeners: list[Listener] = field(default_factory=list)
    events: dict[str, Object] = field(default_factory=dict)
    """Events that were posted, by name."""
    history: list[Object] = field(default_factory=list)
    """Every status that any BatchInference has had."""

    def put(self, body: Object) -> None:
        """Create or replace an object."""
        known = self.objects.get((body["kind"], body["metadata"]["name"]))
        self.version += 1
        metadata = {
            "uid": f"uid-{self.version}",
            "creationTimestamp": stamp(wall_clock()),
            **(known["metadata"] if known else {}),
            **body["metadata"],
            "resourceVersion": str(self.version),
        }
        stored = copy.deepcopy({**body, "metadata": metadata})
        self.objects[body["kind"], body["metadata"]["name"]] = stored
        if stored["kind"] == "BatchInference" and "status" in stored:
            self.history.append(copy.deepcopy(stored["status"]))
        self._tell("MODIFIED" if known else "ADDED", stored)

    def change(self, kind: str, name: str, patch: Object) -> None:
        """Merge a patch into an object."""
        self.put(merged(self.objects[kind, name], patch))

    def delete(self, kind: str, name: str, *, unseen: bool = False) -> None:
        """Delete an object; `unseen` as if every watch had been away meanwhile. A finalizer holds
        it until KubeRay lets go."""
        body = self.objects[kind, name]
        if body["metadata"].get("finalizers") and self.kuberay_away:
            going = {"deletionTimestamp": stamp(wall_clock())}
            self.change(kind, name, {"metadata": going})
            return
        del self.objects[kind, name]
        if not unseen:
            self._tell("DELETED", body)
        for below in [key for key, one in self.objects.items() if _is_below(one, body)]:
            self.delete(*below, unseen=unseen)

    def kuberay_returns(self) -> None:
        """KubeRay is there again and lets go of what was deleted meanwhile."""
        self.kuberay_away = False
        for kind, name in list(self.objects):
            body = self.objects.get((kind, name))
            if kind == "RayJob" and body and "deletionTimestamp" in body["metadata"]:
                self.delete(kind, name)

    def get(self, kind: str, name: str) -> Object | None:
        return self.objects.get((kind, name))

    def status(self, name: str = "job") -> Object:
        """The status of a BatchInference."""
        found: Object = self.objects["BatchInference", name].get("status", {})
        return found

    def apply(self, name: str = "job", **spec: Any) -> None:
        """`kubectl apply` of a new job."""
        body = job_body(name)
        self.put({**body, "spec": {**body["spec"], **spec}})

    def _tell(self, kind_of_event: str, body: Object) -> None:
        for listener in self.listeners:
            listener(kind_of_event, copy.deepcopy(body))

    def watched_by(self, controller: Controller, lag: Mapping[str, float]) -> Listener:
        """Show a controller all that is here and all that changes from now on, each kind so many
        seconds late. Returns the watch."""
        cache, loop = controller.cache, asyncio.get_running_loop()
        takes = {
            "BatchInference": (cache.set_job, cache.drop_job),
            "RayJob": (cache.set_ray_job, cache.drop_ray_job),
            "Pod": (cache.pods.put, cache.pods.drop),
        }

        # timers of one time go off in any order; a watch tells everything in its own
        late: dict[str, deque[tuple[Take, Object]]] = {kind: deque() for kind in takes}

        def listen(event: str | None, body: Object) -> None:
            if body["kind"] in takes and _watched(body):
                take, drop = takes[body["kind"]]
                told = late[body["kind"]]
                told.append((drop if event == "DELETED" else take, body))
                seconds = lag.get(body["kind"], 0)
                loop.call_later(seconds, lambda: controller.hear(*told.popleft()))

        for body in list(self.objects.values()):
            listen(None, copy.deepcopy(body))
        self.listeners.append(listen)
        return listen


def _is_below(body: Object, above: Object) -> bool:
    """Whether a pod is of this RayJob and goes with it. Other objects stay: that those go too is
    the real API server's matter."""
    if (body["kind"], above["kind"]) != ("Pod", "RayJob"):
        return False
    labels = body["metadata"]["labels"]
    return f"{labels[NAME_LABEL]}-{labels[ATTEMPT_LABEL]}" == above["metadata"]["name"]


def _watched(body: Object) -> bool:
    """The operator watches all BatchInferences, and of other kinds what bears its label."""
    return body["kind"] == "BatchInference" or NAME_LABEL in body["metadata"].get("labels", {})


@dataclass
class MemoryGateway:
    """The operator's gateway to a cluster in memory. `before` and `after` are told of each call
    and may raise."""

    cluster: FakeCluster
    before: Callable[[str], None] = lambda _: None
    after: Callable[[str], None] = lambda _: None

    async def create(self, body: Object) -> Object | None:
        call = f"create {body['kind']}"
        self.before(call)
        known = self.cluster.get(body["kind"], body["metadata"]["name"])
        if known is None:
            self.cluster.put(body)
        self.after(call)
        made = self.cluster.get(body["kind"], body["metadata"]["name"])
        return copy.deepcopy(made) if known is None else None

    async def all(self, kind: str, namespace: str) -> AsyncIterator[Object]:
        self.before(f"list {kind}")
        for body in list(self.cluster.objects.values()):
            if body["kind"] == kind and _watched(body):
                yield copy.deepcopy(body)
        self.after(f"list {kind}")

    async def pods(self, namespace: str, job: str) -> set[str]:
        assert namespace == NAMESPACE
        self.before("list Pods")
        found = [body["metadata"] for body in self.cluster.objects.values()
                 if body["kind"] == "Pod"]  # fmt: skip
        self.after("list Pods")
        return {one["name"] for one in found if one["labels"].get(NAME_LABEL) == job}

    async def ray_job(self, namespace: str, name: str) -> Object | None:
        assert namespace == NAMESPACE
        self.before("get RayJob")
        found = copy.deepcopy(self.cluster.get("RayJob", name))
        self.after("get RayJob")
        return found

    async def why_queued(self, namespace: str, seen: RayJobView) -> str:
        assert namespace == NAMESPACE
        self.before("get Workload")
        self.after("get Workload")
        return self.cluster.warnings.get(seen.name, "")

    async def release(self, namespace: str, seen: RayJobView) -> None:
        assert namespace == NAMESPACE
        self.before("release")
        if self.cluster.get("RayJob", seen.name):
            self.cluster.change("RayJob", seen.name, {"spec": {"ttlSecondsAfterFinished": 0}})
        self.after("release")

    async def remove(self, namespace: str, seen: RayJobView) -> None:
        assert namespace == NAMESPACE
        self.before("remove")
        found = self.cluster.get("RayJob", seen.name)
        if found is not None and found["metadata"]["uid"] == seen.uid:
            self.cluster.delete("RayJob", seen.name)
        self.after("remove")

    async def warning(self, namespace: str, kind: str, name: str) -> str:
        assert namespace == NAMESPACE
        self.before("get Events")
        self.after("get Events")
        return self.cluster.warnings.get(name, "")

    async def post_event(self, body: Object) -> bool:
        self.before("post Event")
        known = self.cluster.events.get(body["metadata"]["name"])
        if known is not None:
            known["count"] += 1
            return True
        self.cluster.events[body["metadata"]["name"]] = {**body, "count": 1}
        return False

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Object
    ) -> Object | None:
        assert namespace == NAMESPACE
        self.before("patch status")
        known = self.cluster.get("BatchInference", name)
        if known is None:
            return None
        if known["metadata"]["resourceVersion"] != resource_version:
            raise Conflict("the object has been modified")
        self.cluster.change("BatchInference", name, {"status": patch})
        self.after("patch status")
        return copy.deepcopy(self.cluster.get("BatchInference", name))


@dataclass
class FakeDriver:
    """Answers what it was told to answer; a job it knows nothing of does not answer."""

    answers: dict[str, Answer] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        self.asked.append((namespace, ray_job.name, token))
        return self.answers.get(ray_job.name, Answer(reached=False))

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        self.stopped.append(ray_job.name)


@contextlib.asynccontextmanager
async def operated(
    gateway: MemoryGateway,
    driver: FakeDriver,
    *,
    workers: int = 2,
    lag: Mapping[str, float] | None = None,
    settings: Settings = SETTINGS,
    signals: Signals | None = None,
) -> AsyncIterator[Controller]:
    """An operator that works on a cluster in leaping time while the block runs. It dies with the
    first of its workers."""
    cache = Cache(clock, settings)
    controller = Controller(
        gateway, driver, settings, cache, now=wall_clock, signals=signals or Signals()
    )
    await controller.learn([])
    watch = gateway.cluster.watched_by(controller, lag or {})
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(controller.work()) for _ in range(workers)]
        try:
            yield controller
        finally:
            gateway.cluster.listeners.remove(watch)
            for task in tasks:
                task.cancel()


@dataclass
class KubeRay:
    """Lets the RayJob of a job live through its life, one step every ten seconds."""

    cluster: FakeCluster
    driver: FakeDriver
    name: str = "job"
    attempt: int = 1

    @property
    def ray_job(self) -> str:
        return f"{self.name}-{self.attempt}"

    async def run(self, last: JobState = JobState.SUCCEEDED, **fields: Any) -> None:
        """From the RayJob's creation to its end, whichever way the driver ends. Further arguments
        are fields of its last report."""
        await self.start()
        await self.step(**RUNNING)
        await self.tell(Answer(reached=True))
        await self.tell(_answer(JobState.PREPARING))
        for rows in (0, 40, 90):
            await self.tell(_answer(JobState.RUNNING, rows=rows, total=100))
        await self.tell(_answer(JobState.FINALIZING, rows=100, total=100))
        fields = {"updatedAt": "2026-03-01T12:01:00Z", **fields}
        await self.tell(_answer(last, rows=100, total=100, **fields))
        await self.end(last)

    async def start(self) -> None:
        """Take the RayJob, as soon as it is there."""
        await until(lambda: self.cluster.get("RayJob", self.ray_job))
        finalizers = {"finalizers": ["ray.io/rayjob-finalizer"]}
        self.cluster.change("RayJob", self.ray_job, {"metadata": finalizers})
        name = f"{self.ray_job}-cluster"
        await self.step(jobDeploymentStatus="Initializing", rayClusterName=name)

    async def end(self, last: JobState) -> None:
        """What KubeRay says when the driver has ended."""
        end = {
            JobState.SUCCEEDED: {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"},
            JobState.FAILED: {
                "jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "reason": "AppFailed",
            },
        }[last]  # fmt: skip
        if self.cluster.get("RayJob", self.ray_job):
            await self.step(**end, endTime=wall_clock().isoformat())

    async def step(self, **status: Any) -> None:
        """Change the RayJob's status."""
        self.cluster.change("RayJob", self.ray_job, {"status": status})
        await asyncio.sleep(10)

    async def tell(self, answer: Answer) -> None:
        """Change the driver's answer."""
        self.driver.answers[self.ray_job] = answer
        await asyncio.sleep(10)


def _answer(state: JobState, **fields: Any) -> Answer:
    return Answer(reached=True, report=report(state, **fields))
