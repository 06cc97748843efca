"""The operator's loop, led call by call: nothing happens between two calls but what a test does."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from batchinference_operator.reconcile.settings import Settings
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.controller import Controller
from batchinference_operator.runtime.gateway import Conflict, Refused
from batchinference_operator.runtime.keys import Key
from batchinference_operator.runtime.queue import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS
from support.operator_objects import SETTINGS
from support.simulated_kuberay import SimulatedKubeRay
from support.simulated_server import WATCHED, Call, SimulatedGateway, SimulatedServer

IDLE = "get a key"
MET = (Conflict, Refused)
"""What the server's faults look like; anything else is a defect of the operator."""


@dataclass
class SimulatedQueue:
    """The operator's queue for a single job. Its timer runs by the server's clock."""

    server: SimulatedServer
    key: Key | None = None
    due: float | None = None
    failures: int = 0
    defects: list[BaseException] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        if self.due is not None and self.due <= self.server.seconds:
            self.due = None
            self.waiting = True
        return self.waiting

    waiting: bool = False

    def add(self, key: Key) -> None:
        self.key, self.waiting, self.due = key, True, None

    def add_after(self, key: Key, seconds: float) -> None:
        at = self.server.seconds + seconds
        if not self.waiting and (self.due is None or at < self.due):
            self.due = at

    async def get(self) -> Key:
        while not self.ready:
            await Call(IDLE)
        self.waiting = False
        assert self.key is not None
        return self.key

    def done(self, key: Key) -> None:
        pass

    def retry(self, key: Key) -> float:
        met = sys.exc_info()[1]
        if met is not None and not isinstance(met, MET):
            self.defects.append(met)
        delay = min(FIRST_RETRY_SECONDS * 2.0 ** min(self.failures, 10), MAX_RETRY_SECONDS)
        self.failures += 1
        self.add_after(key, delay)
        return delay

    def forgive(self, key: Key) -> None:
        self.failures = 0

    def forget(self, key: Key) -> None:
        self.failures, self.due = 0, None

    def __len__(self) -> int:
        """Others wait besides the job, if a test says so."""
        return self.others

    others: int = 0


class SimulatedOperator:
    """A process that may be killed between any two calls and starts with what the watches list."""

    def __init__(
        self, server: SimulatedServer, kuberay: SimulatedKubeRay, settings: Settings = SETTINGS
    ) -> None:
        self.server = server
        self.kuberay = kuberay
        self.settings = settings
        self.start()

    def start(self) -> None:
        self.queue = SimulatedQueue(self.server)
        queue: Any = self.queue
        cache = Cache(lambda: self.server.seconds, self.settings)
        self.controller = Controller(
            SimulatedGateway(self.server), self.kuberay, self.settings, cache, queue,
            self.server.now,
        )  # fmt: skip
        self.work: Coroutine[Call, str | None, None] = self.life()
        self.call = self.work.send(None)

    async def life(self) -> None:
        """As often as it takes to learn what is there, and then for ever."""
        while True:
            try:
                await self.controller.learn([])
                break
            except MET:
                continue
        for kind in WATCHED:
            self.server.begin_anew(kind)
        await self.controller.work()

    def kill(self) -> None:
        self.work.close()
        self.start()

    @property
    def idle(self) -> bool:
        return self.call.name == IDLE and not self.queue.ready

    def go_on(self, fault: str | None = None) -> None:
        """Serve the call that it waits for, and let it run to the next one."""
        if not self.idle:
            self.call = self.work.send(None if self.call.name == IDLE else fault)

    def hear(self, kind: str, *, again: bool = False) -> None:
        """The next news of a watch; `again` if it is to come once more."""
        news = self.server.news[kind]
        if not news:
            return
        event, body = news[0] if again else news.popleft()
        cache = self.controller.cache
        takes = {
            "BatchInference": (cache.set_job, cache.drop_job),
            "RayJob": (cache.set_ray_job, cache.drop_ray_job),
            "Pod": (cache.pods.put, cache.pods.drop),
        }
        take, drop = takes[kind]
        self.controller.hear(drop if event == "DELETED" else take, body)

    def hear_all(self) -> None:
        for kind in WATCHED:
            while self.server.news[kind]:
                self.hear(kind)
