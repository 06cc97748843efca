"""What other objects say of why a job does not go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any

from batchinference_operator.reconcile.following import ray_job_of
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.reconcile.queueing import is_gated
from batchinference_operator.runtime.gateway import (
    POD,
    RAY_CLUSTER,
    Conflict,
    Gateway,
    Refused,
)

MAX_ASKED = 3
"""Pods of a job about which Events are asked for: more say the same."""
PATIENCE_SECONDS = 60.0
"""How long a pod may take to start before Events are asked: pulling an image takes a while."""
FIRST_PAUSE, MAX_PAUSE = 10.0, 160.0
"""Seconds until Events are asked again about the same object."""
Ask = Callable[[], Coroutine[Any, Any, str]]
logger = logging.getLogger("batchinference.operator")


@dataclass(frozen=True)
class _Asked:
    words: str
    pause: float
    until: float


@dataclass
class Words:
    """Asks Events about pods, and Kueue about RayJobs. They explain and decide nothing, so no look
    fails where they cannot be read. Requests that fail are counted with all requests."""

    gateway: Gateway
    unread: set[str] = field(default_factory=set)
    """What could not be read last, which is logged once."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    asked: dict[tuple[str, str], _Asked] = field(default_factory=dict)
    """By namespace and name, what Events said last; those that waited longest come first."""

    async def about(self, observed: Observed) -> dict[str, str]:
        """By the names of pods whose containers do not start, of a RayCluster that has no pods,
        and of a RayJob that Kueue holds."""
        namespace, ask = observed.job.namespace, self.gateway
        seen = ray_job_of(observed)
        since = self.now().timestamp() - PATIENCE_SECONDS
        pods = [pod for pod in observed.pods if pod.waiting and (pod.started or inf) <= since]
        troubled = [(POD, pod.name) for pod in pods][:MAX_ASKED]
        if seen is not None and seen.awaits_pods and not observed.pods_of_attempt:
            troubled.append((RAY_CLUSTER, seen.cluster))
        events = [(name, partial(self._warning, namespace, kind, name)) for kind, name in troubled]
        waits = seen is not None and (seen.held or is_gated(observed))
        held = [seen] if seen is not None and waits and seen.queue else []
        queues = [(one.name, partial(ask.why_queued, namespace, one)) for one in held]
        return {**await self._read("Events", events), **await self._read("Workloads", queues)}

    async def _warning(self, namespace: str, kind: str, name: str) -> str:
        """What Events say, asked for less often the longer an object waits: the API server looks
        through all Events of a namespace for one object."""
        key, now = (namespace, name), self.now().timestamp()
        known = self.asked.get(key)
        if known is not None and now < known.until:
            return known.words
        words = await self.gateway.warning(namespace, kind, name)
        pause = FIRST_PAUSE if known is None else min(2 * known.pause, MAX_PAUSE)
        self.asked.pop(key, None)
        self.asked[key] = _Asked(words, pause, now + pause)
        self._forget(now - 2 * MAX_PAUSE)
        return words

    def _forget(self, limit: float) -> None:
        """What was said of objects that nobody asks about any more."""
        for key, asked in list(self.asked.items()):
            if asked.until >= limit:
                return
            del self.asked[key]

    async def _read(self, what: str, asks: Iterable[tuple[str, Ask]]) -> dict[str, str]:
        """As far as they can be read: the first that cannot stands for the others."""
        found: dict[str, str] = {}
        try:
            for name, ask in asks:
                found[name] = await ask()
                self.unread.discard(what)
        except (Refused, Conflict) as problem:
            if what not in self.unread:
                logger.warning("%s cannot be read: %s", what, problem)
            self.unread.add(what)
        return {name: words for name, words in found.items() if words}
