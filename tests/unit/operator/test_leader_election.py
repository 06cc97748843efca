"""The Lease for which the replicas of the operator compete."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from batchinference_operator.kube import leader_election
from batchinference_operator.kube.leader_election import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    Leadership,
    LeadershipLost,
    LeaseForbidden,
)
from plugins.messages import Messages

A, B = "system/bi/a", "system/bi/b"
OTHER = "default/other/c"


@dataclass
class LeaseStore:
    """Stores one Lease, with the API server's rules for concurrent writes."""

    stored: dict[str, Any] | None = None
    status: int = 0
    """The status of every answer instead of the right one; -1 for no answer."""
    hangs: bool = False
    """Whether the next request has no answer."""
    version: int = 0
    now: float = 0.0
    """The time. A request that fails takes a second."""

    async def send(self, method: str, _path: str, body: Any) -> tuple[int, Any, float]:
        if self.hangs:
            self.hangs = False
            await _work_forever()
        self.now += 1 if self.status else 0
        if self.status < 0:
            raise aiohttp.ClientConnectionError
        return (self.status, "no", 0.0) if self.status else (*self._answer(method, body), 0.0)

    def _answer(self, method: str, body: Any) -> tuple[int, Any]:
        if method == "GET":
            return (200, self.stored) if self.stored else (404, {})
        version = self.stored["metadata"]["resourceVersion"] if self.stored else None
        if body["metadata"].get("resourceVersion") != version:
            return 409, {}
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        self.stored = {**body, "metadata": metadata}
        return 200, self.stored

    def replica(self, identity: str = A, **options: Any) -> Leadership:
        return Leadership(self.send, "system/bi", identity, **options)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> LeaseStore:
    """Return a store whose `now` is the clock of all replicas."""
    store = LeaseStore()
    monkeypatch.setattr(leader_election, "monotonic", lambda: store.now)
    return store


async def test_lease_is_free_after_its_last_renewal_expires(store: LeaseStore) -> None:
    first, second = store.replica(A), store.replica(B)
    assert await first.take()
    assert not await second.take()
    store.now = LEASE_SECONDS - 1
    assert await first.take()
    store.now = 2 * LEASE_SECONDS - 2
    assert not await second.take(), "it has been renewed"
    store.now = 3 * LEASE_SECONDS
    assert await second.take()
    assert store.stored is not None
    assert store.stored["spec"]["leaseTransitions"] == 1
    assert not await first.take()


async def test_released_lease_is_taken_at_once(store: LeaseStore) -> None:
    first, second = store.replica(A), store.replica(B)
    assert await first.take()
    await second.release()
    assert not await second.take(), "only the holder releases it"
    await first.release()
    assert await second.take()


async def test_one_of_two_replicas_takes_a_free_lease(store: LeaseStore) -> None:
    results = await asyncio.gather(store.replica(A).take(), store.replica(B).take())
    assert sorted(results) == [False, True]


@pytest.mark.parametrize("status", [-1, 409, 500])
async def test_lease_is_not_taken_without_an_answer(store: LeaseStore, status: int) -> None:
    store.status = status
    assert not await store.replica(A).take()


async def test_missing_right_ends_the_operator(store: LeaseStore, messages: Messages) -> None:
    store.status = 403
    with messages.raises(LeaseForbidden):
        await store.replica().lead(_work_forever)


async def _work_forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("status", [-1, 403, 500])
async def test_work_is_cancelled_if_the_lease_is_not_renewed(
    store: LeaseStore, status: int
) -> None:
    leadership, ended = store.replica(retry_seconds=0), asyncio.Event()

    async def work() -> None:
        store.status = status
        try:
            await _work_forever()
        finally:
            ended.set()

    with pytest.raises(LeadershipLost):
        await leadership.lead(work)
    assert ended.is_set()
    assert not leadership.is_leader


async def test_leader_gives_up_before_its_lease_expires() -> None:
    """Also if a request hangs."""
    assert RENEW_SECONDS < LEASE_SECONDS
    store = LeaseStore()

    async def work() -> None:
        store.hangs = True
        await _work_forever()

    with pytest.raises(LeadershipLost):
        await store.replica(renew_seconds=0.05, retry_seconds=0).lead(work)


async def test_lease_is_released_after_the_work(store: LeaseStore) -> None:
    leadership = store.replica()

    async def work() -> None:
        assert leadership.is_leader

    await leadership.lead(work)
    assert store.stored is not None
    assert store.stored["spec"]["holderIdentity"] == ""


async def test_standby_is_ready_if_a_replica_of_its_release_leads(
    store: LeaseStore, messages: Messages
) -> None:
    standby, other = store.replica(B), store.replica(OTHER)
    messages.check(standby.unready)
    await store.replica(A).take()
    await standby.take()
    assert standby.unready is None
    await other.take()
    messages.check(other.unready)
