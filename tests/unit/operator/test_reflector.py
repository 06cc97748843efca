"""A reflector keeps a store up to date: lists, watches, deletions and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from batchinference.rendering import RAY_JOB
from batchinference_operator.kube.api_errors import Expired, Forbidden, Unreachable
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.kube.object_client import path_of
from batchinference_operator.kube.reflector import LOST_SECONDS, MAX_BACKOFF, Reflector, Store
from batchinference_operator.kube.watch_health import WatchHealth
from batchinference_operator.reconcile.job_view import stub_of
from plugins.messages import Messages
from support.operator.objects import NAMESPACE
from support.operator.virtual_time import clock, in_virtual_time
from support.servers.scripted_http import Answer, Server, answering

Object = dict[str, Any]
Connect = Callable[[Answer], Awaitable[tuple[KubeClient, Server]]]
PATH = path_of(RAY_JOB, NAMESPACE)
PERIOD = 60


def ray_job(name: str, version: int = 1) -> Object:
    body = stub_of((NAMESPACE, "job"), name, f"{name}-uid")
    return {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}


def event(kind: str, name: str, version: int) -> Object:
    return {"type": kind, "object": ray_job(name, version)}


ENDED = "the server ends the watch"


@dataclass
class ScriptedClient:
    """Returns scripted lists and watches: objects, seconds to wait, or an exception to raise."""

    lists: list[Any]
    watches: list[Any] = field(default_factory=list)
    calls: list[tuple[float, str]] = field(default_factory=list)
    """The time and the kind of each request, with the version from which a watch starts."""

    async def list_pages(self, *_: Any) -> AsyncIterator[tuple[list[Object], str]]:
        self.calls.append((clock(), "list"))
        for page in self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]:
            if isinstance(page, Exception):
                raise page
            yield page, "10"

    async def watch(
        self, _: str, __: str, version: str, ___: int, accepted: Callable[[], None]
    ) -> AsyncGenerator[Object, None]:
        self.calls.append((clock(), f"watch {version}"))
        script = self.watches.pop(0) if self.watches else []
        for each in script:
            if isinstance(each, Exception):
                raise each
            accepted()
            if each is ENDED:
                return
            if isinstance(each, float):
                await asyncio.sleep(each)
            else:
                yield each
        accepted()
        await asyncio.sleep(PERIOD)


@dataclass
class Recorder:
    """A store that records its names and calls."""

    names: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)

    def put(self, body: Object) -> None:
        name = body["metadata"]["name"]
        self.calls.append(f"put {name}")
        self.names.add(name)

    def delete(self, body: Object) -> None:
        self.calls.append(f"delete {body['metadata']['name']}")
        self.names.discard(body["metadata"]["name"])

    def known(self, namespace: str) -> list[Object]:
        return [ray_job(name) for name in sorted(self.names)]

    @property
    def store(self) -> Store:
        note = self.calls.append
        listed = lambda _, version: note(f"listed {version}")  # noqa: E731
        return Store(self.put, self.delete, self.known, listed, lambda _: note("requeue"))


@asynccontextmanager
async def reflecting(
    client: ScriptedClient, recorder: Recorder, seconds: float = 1
) -> AsyncIterator[tuple[Reflector, WatchHealth]]:
    """Run a reflector for some seconds."""
    health = WatchHealth([NAMESPACE, "other"], PERIOD)
    reflector = Reflector(client, RAY_JOB, NAMESPACE, recorder.store, health, PERIOD)  # type: ignore[arg-type]
    task = asyncio.create_task(reflector.run())
    await asyncio.sleep(seconds)
    assert not task.done()
    yield reflector, health
    task.cancel()


@in_virtual_time
async def test_watch_continues_from_the_last_version_that_was_seen() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "15"}}}
    watches = [event("ADDED", "c", 11)], [event("DELETED", "a", 14), bookmark]
    client = ScriptedClient([[[ray_job("a")], [ray_job("b")]]], list(watches))
    recorder = Recorder()
    async with reflecting(client, recorder, 3 * PERIOD - 10) as (reflector, health):
        assert reflector.is_listed
        assert f"{PATH}" not in health.missing
    assert [call for _, call in client.calls] == ["list", "watch 10", "watch 11", "watch 15"]
    assert recorder.calls == ["put a", "put b", "listed 10", "requeue",
                              "put c", "put a", "delete a"]  # fmt: skip


EXPIRED = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}


@pytest.mark.parametrize("end", [[EXPIRED], [Expired("410: Gone")]], ids=["event", "status"])
@in_virtual_time
async def test_new_list_reports_what_was_deleted_in_the_meantime(end: list[Any]) -> None:
    client = ScriptedClient([[[ray_job("a"), ray_job("b")]], [[ray_job("b"), ray_job("c")]]], [end])
    recorder = Recorder()
    async with reflecting(client, recorder):
        assert recorder.names == {"b", "c"}
    assert recorder.calls.count("requeue") == 1
    assert [call for _, call in client.calls] == ["list", "watch 10", "list", "watch 10"]


@in_virtual_time
async def test_list_that_fails_midway_deletes_nothing_and_starts_over() -> None:
    client = ScriptedClient([[[ray_job("a")], Expired("410")], [[ray_job("a")], [ray_job("b")]]])
    recorder = Recorder(names={"b"})
    async with reflecting(client, recorder):
        assert recorder.names == {"a", "b"}
    assert "delete b" not in recorder.calls


@in_virtual_time
async def test_broken_watch_is_retried_with_backoff_and_keeps_its_version() -> None:
    client = ScriptedClient([[[ray_job("a")]]], [[Unreachable("reset")]] * 8)
    recorder = Recorder()
    async with reflecting(client, recorder, 200):
        assert recorder.names == {"a"}
    times, calls = zip(*client.calls, strict=True)
    assert set(calls[1:]) == {"watch 10"}
    pauses = [after - before for before, after in pairwise(times[1:])]
    assert pauses[:4] == pytest.approx([0.5, 1, 2, 4])
    assert max(pauses[:8]) == pytest.approx(MAX_BACKOFF)


@in_virtual_time
async def test_watch_that_keeps_failing_is_logged_as_a_warning_once(
    caplog: pytest.LogCaptureFixture, messages: Messages
) -> None:
    """Until it succeeds, the operator does not see what changes."""
    client = ScriptedClient([[Unreachable("200: no JSON object")]])
    async with reflecting(client, Recorder(), 200):
        pass
    messages.check([record.message for record in caplog.records if record.levelname == "WARNING"])


@pytest.mark.parametrize(
    "watch",
    [
        [EXPIRED],
        [event("ADDED", "a", 11), Unreachable("reset")],
        [event("ADDED", "a", 11), ENDED],
        [{"type": "ADDED", "object": {}}],
    ],
    ids=["expires", "breaks", "ends", "unreadable"],
)
@in_virtual_time
async def test_watch_that_is_accepted_and_ends_at_once_is_retried_with_backoff(watch: Any) -> None:
    client = ScriptedClient([[[ray_job("a")]]], [watch] * 1000)
    async with reflecting(client, Recorder(), 200):
        watches = [time for time, call in client.calls if call.startswith("watch")]
    pauses = [after - before for before, after in pairwise(watches)]
    assert pauses[:4] == pytest.approx([0.5, 1, 2, 4])
    assert max(pauses) == pytest.approx(MAX_BACKOFF)


@in_virtual_time
async def test_watch_that_lasted_is_restarted_soon() -> None:
    """A proxy may end each watch that is quiet for some seconds."""
    client = ScriptedClient([[[ray_job("a")]]], [[5.0, Unreachable("idle")]] * 10)
    async with reflecting(client, Recorder(), 50):
        assert len(client.calls) > 8


@in_virtual_time
async def test_objects_of_a_refused_watch_are_forgotten_only_after_a_while() -> None:
    """The namespace or the operator's Role may be deleted, or RBAC rules are being reloaded."""
    client = ScriptedClient([[[ray_job("a")]]], [[Forbidden("403: no Role")]] * 1000)
    recorder = Recorder()
    async with reflecting(client, recorder, LOST_SECONDS - MAX_BACKOFF) as (reflector, health):
        assert (recorder.names, health.lost_namespaces) == ({"a"}, {NAMESPACE})
        client.lists = [[Forbidden("403: no Role")]]
        await asyncio.sleep(3 * MAX_BACKOFF)
        assert recorder.names == set()
        assert not reflector.is_listed
        client.lists, client.watches = [[[ray_job("b")]]], []
        await asyncio.sleep(2 * MAX_BACKOFF)
        assert (recorder.names, health.lost_namespaces) == ({"b"}, set())
    assert recorder.calls.count("requeue") == 2


@in_virtual_time
async def test_jobs_are_queued_again_when_the_first_list_is_refused() -> None:
    """Jobs of a namespace whose list is refused keep no position in the admission queue."""
    recorder = Recorder()
    client = ScriptedClient([[Forbidden("403: no Role")]])
    async with reflecting(client, recorder, 3 * MAX_BACKOFF) as (reflector, health):
        assert (recorder.calls, reflector.is_listed) == (["requeue"], False)
        assert [health.is_refused(name) for name in (NAMESPACE, "other")] == [True, False]


# --- the requests ---------------------------------------------------------------------


async def watched(api: KubeClient) -> list[Object]:
    return [each async for each in api.watch(RAY_JOB, NAMESPACE, "7", 5)]


async def test_watch_yields_complete_lines_of_any_length(connect: Connect) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b'{"a"', b": 1}\n{", b'"b": "' + b"x" * 100_000 + b'"}\n{"incom'):
            await response.write(part)
        return response

    api, server = await connect(answer)
    assert await watched(api) == [{"a": 1}, {"b": "x" * 100_000}]
    (sent,) = server.requests
    assert (sent.path, sent.query) == (
        PATH,
        {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "5",
            "labelSelector": "batchinference.dev/name",
            "resourceVersion": "7",
        },
    )


@pytest.mark.parametrize(
    ("status", "error"), [(410, Expired), (403, Forbidden), (503, Unreachable)]
)
async def test_refused_watch_raises(connect: Connect, status: int, error: type[Exception]) -> None:
    api, _ = await connect(answering(status, {"kind": "Status", "message": "no"}))
    with pytest.raises(error, match=str(status)):
        await watched(api)


async def test_broken_watch_raises_unreachable(connect: Connect) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"a": 1}\n')
        assert request.transport is not None
        request.transport.abort()
        return response

    api, _ = await connect(answer)
    with pytest.raises(Unreachable):
        await watched(api)
