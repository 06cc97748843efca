"""Which drivers are asked, and how often: one that does not answer takes a worker for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from batchinference_operator.runtime.driver import Answer, Driver
from batchinference_operator.status.observations import RayJobView

SLOTS = 4
"""Drivers that did not answer last and are asked at a time."""
FIRST_PAUSE, MAX_PAUSE = 10.0, 160.0
"""Seconds until such a driver is asked again. Each silence doubles them."""
FORGET_SECONDS = 3600.0
"""How long one is known whose turn to be asked has come, and of which nobody has asked."""
Asked = tuple[str, bool]
"""The uid of a RayJob, and whether it has ended: at its end its driver is asked anew."""


@dataclass(frozen=True)
class Silence:
    pause: float
    until: float


class Asking:
    """A driver that was silent counts as silent until its turn comes to be asked again."""

    def __init__(self, driver: Driver, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._clock = clock
        self._free = SLOTS
        self.silent: dict[Asked, Silence] = {}

    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        key = ray_job.uid, ray_job.ended
        before = self.silent.get(key)
        if before is None:
            answer = await self._driver.ask(namespace, ray_job, token)
        elif self._clock() < before.until or not self._free:
            return Answer(reached=False)
        else:
            self._free -= 1
            try:
                answer = await self._driver.ask(namespace, ray_job, token)
            finally:
                self._free += 1
        self._note(key, answer)
        return answer

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        await self._driver.stop(namespace, ray_job, token)

    def _note(self, key: Asked, answer: Answer) -> None:
        before, now = self.silent.pop(key, None), self._clock()
        if answer.reached:
            return
        pause = min(2 * before.pause, MAX_PAUSE) if before else FIRST_PAUSE
        self.silent[key] = Silence(pause, now + pause)
        self._forget(now)

    def _forget(self, now: float) -> None:
        """Those whose jobs have gone. The longest known come first."""
        while self.silent[first := next(iter(self.silent))].until < now - FORGET_SECONDS:
            del self.silent[first]
