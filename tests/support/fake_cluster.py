"""An API server in memory, as far as the operator asks anything of it, and a KubeRay to go with it.

It keeps resourceVersions and refuses stale ones, so that what the operator gets away with here it
gets away with at a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchinference.rendering import NAME_LABEL
from batchinference.spec.report import JobState
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.controller import Controller
from batchinference_operator.runtime.driver import Answer
from batchinference_operator.runtime.gateway import Conflict
from batchinference_operator.status.observations import RayJobView
from support.operator_objects import CREATED, NAMESPACE, RUNNING, SETTINGS, job_body, report
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
    listeners: list[Listener] = field(default_factory=list)
    history: list[Object] = field(default_factory=list)
    """Every status that any BatchInference has had."""

    def put(self, body: Object) -> None:
        """Create or replace an object."""
        known = self.objects.get((body["kind"], body["metadata"]["name"]))
        self.version += 1
        metadata = {
            "uid": f"uid-{self.version}",
            "creationTimestamp": CREATED,
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
        """Delete an object; `unseen` as if every watch had been away meanwhile."""
        body = self.objects.pop((kind, name))
        if not unseen:
            self._tell("DELETED", body)

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
            "Pod": (cache.set_pod, cache.drop_pod),
        }

        def listen(event: str | None, body: Object) -> None:
            if body["kind"] in takes and _watched(body):
                take, drop = takes[body["kind"]]
                chosen = drop if event == "DELETED" else take
                seconds = lag.get(body["kind"], 0)
                loop.call_later(seconds, lambda: controller.queue.add(chosen(body)))

        for body in list(self.objects.values()):
            listen(None, copy.deepcopy(body))
        self.listeners.append(listen)
        return listen


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

    async def create(self, body: Object) -> None:
        call = f"create {body['kind']}"
        self.before(call)
        if self.cluster.get(body["kind"], body["metadata"]["name"]) is None:
            self.cluster.put(body)
        self.after(call)

    async def ray_job(self, namespace: str, name: str) -> Object | None:
        assert namespace == NAMESPACE
        self.before("get RayJob")
        found = copy.deepcopy(self.cluster.get("RayJob", name))
        self.after("get RayJob")
        return found

    async def release(self, namespace: str, name: str) -> None:
        assert namespace == NAMESPACE
        self.before("release")
        if self.cluster.get("RayJob", name):
            self.cluster.change("RayJob", name, {"spec": {"ttlSecondsAfterFinished": 0}})
        self.after("release")

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Object
    ) -> bool:
        assert namespace == NAMESPACE
        self.before("patch status")
        known = self.cluster.get("BatchInference", name)
        if known is None:
            return False
        if known["metadata"]["resourceVersion"] != resource_version:
            raise Conflict("the object has been modified")
        self.cluster.change("BatchInference", name, {"status": patch})
        self.after("patch status")
        return True


@dataclass
class FakeDriver:
    """Answers what it was told to answer; a job it knows nothing of does not answer."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        self.asked.append((namespace, ray_job.name, token))
        return self.answers.get(ray_job.name, Answer(reached=False))


@contextlib.asynccontextmanager
async def operated(
    gateway: MemoryGateway,
    driver: FakeDriver,
    *,
    workers: int = 2,
    lag: Mapping[str, float] | None = None,
) -> AsyncIterator[Controller]:
    """An operator that works on a cluster in leaping time while the block runs. It dies with the
    first of its workers."""
    controller = Controller(gateway, driver, SETTINGS, Cache(clock), now=wall_clock)
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

    async def run(self, last: JobState = JobState.SUCCEEDED) -> None:
        """From the RayJob's creation to its end, whichever way the driver ends."""
        await until(lambda: self.cluster.get("RayJob", f"{self.name}-1"))
        await self.step(jobDeploymentStatus="Initializing")
        await self.step(rayClusterName="a-raycluster", **RUNNING)
        await self.tell(Answer(reached=True))
        await self.tell(_answer(JobState.PREPARING))
        for rows in (0, 40, 90):
            await self.tell(_answer(JobState.RUNNING, rows=rows, total=100))
        await self.tell(_answer(JobState.FINALIZING, rows=100, total=100))
        await self.tell(_answer(last, rows=100, total=100, updatedAt="2026-03-01T12:02:00Z"))
        ray = "SUCCEEDED" if last == JobState.SUCCEEDED else "FAILED"
        ended = wall_clock().isoformat()
        await self.step(jobStatus=ray, jobDeploymentStatus="Complete", endTime=ended)

    async def step(self, **status: Any) -> None:
        """Change the RayJob's status."""
        self.cluster.change("RayJob", f"{self.name}-1", {"status": status})
        await asyncio.sleep(10)

    async def tell(self, answer: Answer) -> None:
        """Change the driver's answer."""
        self.driver.answers[f"{self.name}-1"] = answer
        await asyncio.sleep(10)


def _answer(state: JobState, **fields: Any) -> Answer:
    return Answer(reached=True, report=report(state, **fields))
