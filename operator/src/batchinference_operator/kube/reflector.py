"""Lists and watches the objects of one kind in one namespace, or in all namespaces.

After each list, the reflector reports cached objects that are not in the list as deleted. Watches
may have missed their deletion. Each failed watch is retried with its own backoff.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from math import inf

from batchinference_operator.kube.api_errors import Conflict, Expired, Refused, Unreachable
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.kube.object_client import path_of
from batchinference_operator.kube.watch_health import WatchHealth
from batchinference_operator.reconcile.job_view import key_of
from batchinference_operator.status.ray_job_view import Object

RECONNECT_SECONDS = 0.1
"""Pause between two watches."""
STABLE_SECONDS = 1.0
"""Minimum duration of a successful watch. If the server ends each watch at once, the operator must
not send a request every RECONNECT_SECONDS."""
FIRST_BACKOFF = 0.5
MAX_BACKOFF = 20.0
WARNED_FAILURES = 5
"""Consecutive failures before a warning (about 15 s). Refusals are logged at once."""
LOST_SECONDS = 300.0
"""Seconds for which a watch may be refused before its objects are forgotten. An API server that has
just started may refuse requests that it allows later."""
logger = logging.getLogger("batchinference.operator")


@dataclass(frozen=True)
class Store:
    """The callbacks of a reflector, which update the cache. They raise no errors for invalid
    objects of tenants."""

    put: Callable[[Object], None]
    delete: Callable[[Object], None]
    """Called with a deleted object, maybe with only a name, a namespace, a uid and labels."""
    known: Callable[[str], list[Object]]
    """Returns the cached objects of a namespace ("" for all), maybe with these fields only."""
    listed: Callable[[str, str], None]
    """Called after each complete list, with the namespace and the resource version."""
    requeue: Callable[[str], None]
    """Called with the namespace when its first list is complete, and when the list is refused."""


@dataclass(eq=False)
class Reflector:
    """Keeps a store up to date with the objects of a kind. An empty namespace means all."""

    client: KubeClient
    kind: str
    namespace: str
    store: Store
    health: WatchHealth
    seconds: int
    """The maximum duration of a watch."""
    is_listed: bool = False
    """Whether the store has all objects, except for recent changes."""
    _version: str = ""
    """The resource version from which the next watch starts; empty if a list comes first."""
    _failures: int = 0
    _accepted_at: float = inf
    """When the current watch was accepted; infinity before."""
    _refused_since: float | None = None

    def __post_init__(self) -> None:
        self._path = path_of(self.kind, self.namespace)

    async def run(self) -> None:
        """List and watch until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            self._accepted_at = inf
            problem = await self._list_and_watch()
            stable = now() - self._accepted_at >= STABLE_SECONDS
            if stable:
                self._failures = 0
            if stable and not problem:
                await asyncio.sleep(RECONNECT_SECONDS)
            else:
                await self._back_off(problem or "the watch has ended at once")

    async def _back_off(self, problem: str) -> None:
        seconds = min(FIRST_BACKOFF * 2.0 ** min(self._failures, 10), MAX_BACKOFF)
        if not self._failures:
            logger.info("%s: the watch is retried in %.1f s: %s", self._path, seconds, problem)
        elif self._failures == WARNED_FAILURES and self._refused_since is None:
            effect = "the status of its jobs may be outdated"
            logger.warning("%s: the watch keeps failing (%s): %s", self._path, problem, effect)
        self._failures += 1
        await asyncio.sleep(seconds)

    async def _list_and_watch(self) -> str:
        """List if necessary, and watch once. Return the error message; empty if there is none."""
        try:
            if not self._version:
                await self._list()
            await self._watch()
        except (Expired, Unreachable, Conflict) as error:
            self._version = "" if isinstance(error, Expired) else self._version
            return str(error)
        except Refused as error:
            self._record_refusal(str(error))
            return str(error)
        except Exception as error:  # an invalid response must not stop the operator
            if not self._failures:
                logger.exception("an answer for %s cannot be read", self._path)
            self._version = ""
            return repr(error)
        return ""

    async def _watch(self) -> None:
        """Update the store with the events of one watch."""
        accepted = partial(self._record_answer, watch=True)
        watch = self.client.watch(self.kind, self.namespace, self._version, self.seconds, accepted)
        async with aclosing(watch) as events:
            async for event in events:
                body = event["object"]
                if event["type"] == "ERROR":
                    raise Expired(str(body.get("message", "")))
                self._version = body["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self.store.put(body)  # DELETED has the last state
                if event["type"] == "DELETED":
                    self.store.delete(body)

    async def _list(self) -> None:
        """Store all objects, and report the cached objects that are gone as deleted."""
        missing = {key_of(body): body for body in self.store.known(self.namespace)}
        version = ""
        async for items, version in self.client.list_pages(self.kind, self.namespace):  # noqa: B007
            self._record_answer(watch=False)
            for body in items:
                missing.pop(key_of(body), None)
                self.store.put(body)
        for body in missing.values():
            self.store.delete(body)
        self._version = version
        self.store.listed(self.namespace, version)
        if not self.is_listed:
            self.is_listed = True
            self.store.requeue(self.namespace)

    def _record_answer(self, *, watch: bool) -> None:
        self._refused_since = None
        if watch:
            self._accepted_at = asyncio.get_running_loop().time()
        self.health.record_answer(self._path, watch=watch)

    def _record_refusal(self, problem: str) -> None:
        """Record a refused request. After LOST_SECONDS, forget all objects."""
        self.health.record_refusal(self._path, problem)
        now = asyncio.get_running_loop().time()
        if self._refused_since is None:
            self._refused_since = now
            if not self.is_listed:
                self.store.requeue(self.namespace)
        elif self.is_listed and now - self._refused_since > LOST_SECONDS:
            effect = "its objects are forgotten"
            logger.warning("no permission for %s for %d s: %s", self._path, LOST_SECONDS, effect)
            self.is_listed, self._version = False, ""
            for body in self.store.known(self.namespace):
                self.store.delete(body)
