"""What other objects say of why a job does not go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from batchinference_operator.reconcile.following import ray_job_of
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.runtime.gateway import (
    POD,
    RAY_CLUSTER,
    Conflict,
    Gateway,
    Refused,
)

MAX_ASKED = 3
"""Pods of a job about which Events are asked for: more say the same."""
Ask = Callable[[], Coroutine[Any, Any, str]]
logger = logging.getLogger("batchinference.operator")


@dataclass
class Words:
    """Asks Events about pods, and Kueue about RayJobs. They explain and decide nothing, so no look
    fails where they cannot be read. Requests that fail are counted with all requests."""

    gateway: Gateway
    unread: set[str] = field(default_factory=set)
    """What could not be read last, which is logged once."""

    async def about(self, observed: Observed) -> dict[str, str]:
        """By the names of pods whose containers do not start, of a RayCluster that has no pods,
        and of a RayJob that Kueue holds."""
        namespace, ask = observed.job.namespace, self.gateway
        seen = ray_job_of(observed)
        troubled = [(POD, pod.name) for pod in observed.pods if pod.waiting][:MAX_ASKED]
        if seen is not None and seen.awaits_pods and not observed.pods_of_attempt:
            troubled.append((RAY_CLUSTER, seen.cluster))
        events = [(name, partial(ask.warning, namespace, kind, name)) for kind, name in troubled]
        held = [seen] if seen is not None and seen.held and seen.queue else []
        queues = [(one.name, partial(ask.why_queued, namespace, one)) for one in held]
        return {**await self._read("Events", events), **await self._read("Workloads", queues)}

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
