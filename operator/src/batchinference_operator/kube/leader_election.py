"""Leader election: of all replicas that share a Lease, one is active and the others wait.

All releases that watch the whole cluster share a Lease. So a second release waits, and does not
reconcile the jobs of the first release.

`kubernetes.aio.leaderelection` (version 37) is not used. That election neither creates a Lease nor
releases the Lease on exit. Also, it writes local times as UTC, and its requests have no timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from time import monotonic
from typing import Any

import aiohttp

LEASE_SECONDS = 12
"""Seconds after the last renewal until another replica may take the Lease."""
RENEW_SECONDS = 7.0
"""Seconds for which a leader tries to renew the Lease before it stops its work."""
RETRY_SECONDS = 2.0
"""Seconds between two renewals, or between two tries to take the Lease."""
REQUEST_SECONDS = 2.0
API_VERSION = "coordination.k8s.io/v1"
Object = dict[str, Any]
Send = Callable[[str, str, Any], Awaitable[tuple[int, Any, float]]]
"""Sends a request with method, path and body. Returns status, answer and Retry-After (seconds)."""
logger = logging.getLogger("batchinference.operator")


class LeadershipLost(Exception):
    """The Lease could not be renewed. Another replica may have taken it."""


class LeaseForbidden(Exception):
    """The operator has no permission to read its Lease."""


def _release_of(identity: str) -> str:
    """Return the release of a replica, as NAMESPACE/NAME."""
    return identity.rpartition("/")[0]


@dataclass
class Leadership:
    """Competes for a Lease in the API server, and holds the Lease while the operator works."""

    send: Send
    name: str
    """NAMESPACE/NAME of the Lease."""
    identity: str
    """NAMESPACE/NAME/POD of this replica, with the namespace and name of its release."""
    renew_seconds: float = RENEW_SECONDS
    retry_seconds: float = RETRY_SECONDS
    is_leader: bool = False
    _spec: Object = field(default_factory=dict)
    """The spec of the Lease when it was last read."""
    _since: float = 0.0
    """When this spec was first read or written."""

    @property
    def holder(self) -> str:
        """The identity of the leader when the Lease was last read; empty if there was none."""
        return self._spec.get("holderIdentity") or ""

    @property
    def other_release(self) -> str | None:
        """The other release that holds the Lease, as NAMESPACE/NAME; None if there is no other."""
        release = _release_of(self.holder)
        return release if release not in ("", _release_of(self.identity)) else None

    @property
    def unready(self) -> str | None:
        """Why this replica cannot take over from a leader of its release; None if it can."""
        if self.other_release:
            return f"release {self.other_release} runs the jobs of this cluster"
        return None if self.holder else "there is no leader yet"

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait until this replica holds the Lease, do the work, and release the Lease. If the Lease
        cannot be renewed, cancel the work and raise LeadershipLost. Raises LeaseForbidden."""
        await self._acquire()
        logger.info("%s is the leader", self.identity)
        self.is_leader = True
        try:
            await self._work_while_renewed(work())
        finally:
            self.is_leader = False
            await self.release()

    async def _acquire(self) -> None:
        """Wait until this replica holds the Lease. Log each other holder once."""
        reported = ""
        while not await self.take():
            if (holder := self.holder) != reported:
                reported = holder
                if self.other_release is None:
                    logger.info("waiting: %s is the leader", holder)
                else:
                    fix = "Uninstall one of the two releases, or give each its own watchNamespaces"
                    logger.warning("waiting: %s. %s", self.unready, fix)
            await asyncio.sleep(self.retry_seconds)

    async def _work_while_renewed(self, work: Coroutine[Any, Any, None]) -> None:
        working, renewing = asyncio.create_task(work), asyncio.create_task(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            (working if working.done() else renewing).result()
        finally:
            working.cancel()
            renewing.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)

    async def _renew(self) -> None:
        """Renew the Lease until all tries have failed for `renew_seconds`, or until another replica
        has the Lease. Then raise LeadershipLost."""
        renewed = monotonic()
        while (left := renewed + self.renew_seconds - monotonic()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await asyncio.sleep(self.retry_seconds)
                    began = monotonic()
                    if await self.take():
                        renewed = began
                    elif self.holder != self.identity:
                        break
        raise LeadershipLost(f"the Lease was not renewed; its holder is {self.holder!r}")

    async def take(self) -> bool:
        """Take or renew the Lease, unless another replica holds it. Return whether that is done."""
        metadata = await self._read()
        if metadata is None:
            return False
        # computed without renewTime, because the clocks of nodes may differ
        expires = self._since + self._spec.get("leaseDurationSeconds", LEASE_SECONDS)
        if self.holder not in ("", self.identity) and monotonic() < expires:
            return False
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_new = self.holder != self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": now if is_new else self._spec.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": self._spec.get("leaseTransitions", -1) + is_new,
        }
        return await self._write(metadata, spec)

    async def release(self) -> None:
        """Release the Lease, so that the next leader does not wait until it expires."""
        metadata = await self._read()
        if metadata is None or self.holder != self.identity:
            return
        if not await self._write(metadata, {**self._spec, "holderIdentity": ""}):
            logger.warning("the Lease was not released: the next leader waits until it expires")

    async def _read(self) -> Object | None:
        """Return the metadata of the Lease: empty if there is no Lease, None if the read failed."""
        status, answer = await self._request("GET")
        if status == HTTPStatus.NOT_FOUND:
            self._spec = {}
            return {}
        # after a successful read, this is no error: a server that has just started may refuse reads
        if status == HTTPStatus.FORBIDDEN and not self._spec:
            missing = f"the right to read the Lease {self.name} is missing"
            raise LeaseForbidden(f"{missing}; the chart's roles have it: {answer}")
        if status != HTTPStatus.OK:
            logger.warning("the Lease cannot be read: %s: %s", status, answer)
            return None
        if (spec := answer.get("spec") or {}) != self._spec:
            self._spec, self._since = spec, monotonic()
        metadata: Object = answer["metadata"]
        return metadata

    async def _write(self, read: Object, spec: Object) -> bool:
        """Create or replace the Lease, unless it has changed since `_read` returned `read`."""
        namespace, _, name = self.name.partition("/")
        metadata = read or {"name": name, "namespace": namespace}
        body = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}
        status, answer = await self._request("PUT" if read else "POST", body)
        written = status in (HTTPStatus.OK, HTTPStatus.CREATED)
        if written:
            self._spec, self._since = answer["spec"], monotonic()
        elif status != HTTPStatus.CONFLICT:
            logger.warning("the Lease cannot be written: %s: %s", status, answer)
        return written

    async def _request(self, method: str, body: Any = None) -> tuple[int, Any]:
        """Send a request. Return the status and the answer; without a response, 0 and the error."""
        namespace, _, name = self.name.partition("/")
        leases = f"/apis/{API_VERSION}/namespaces/{namespace}/leases"
        path = leases if method == "POST" else f"{leases}/{name}"
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                status, answer, _ = await self.send(method, path, body)
                return status, answer
        except (aiohttp.ClientError, OSError) as problem:  # TimeoutError is an OSError
            return 0, str(problem) or "no answer"
