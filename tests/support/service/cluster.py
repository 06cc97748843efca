"""An API server that has only BatchInferences, in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

Object = dict[str, Any]
PATH = "/apis/batchinference.dev/v1beta1/namespaces/{namespace}/batchinferences"


@dataclass
class FakeCluster:
    """The objects by namespace and name, and how the server answers."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    authorizations: list[str] = field(default_factory=list)
    lost_answers: int = 0
    """Number of the next created objects whose answers get lost."""
    refusal: str = ""
    """The message with which objects are refused."""
    now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    has_conflict: bool = False
    """Whether another change of an object comes first."""
    lists: int = 0
    """The number of requests for lists."""
    run: Callable[[Object], None] | None = None
    """Runs the job of a new object, in place of the operator."""

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_post(PATH, self._create)
        application.router.add_get(PATH, self._list)
        application.router.add_get(PATH + "/{name}", self._get)
        application.router.add_patch(PATH + "/{name}", self._patch)
        return application

    def only(self) -> Object:
        """Return the only object."""
        (value,) = self.objects.values()
        return value

    def set_status(self, status: Object, name: str = "") -> None:
        """Set the status of an object, by default of the only one."""
        only = self.only() if not name else self.objects[("team-a", name)]
        only["status"] = status

    async def _create(self, request: web.Request) -> web.Response:
        self.authorizations.append(request.headers["Authorization"])
        sent = await request.json()
        key = request.match_info["namespace"], sent["metadata"]["name"]
        if self.refusal:
            return web.json_response({"message": self.refusal}, status=422)
        if key in self.objects:
            return web.json_response({"reason": "AlreadyExists"}, status=409)
        now = self.now() + timedelta(seconds=len(self.objects))
        sent["metadata"]["creationTimestamp"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.objects[key] = sent
        answer = json.loads(json.dumps(sent))
        if self.run:
            await asyncio.to_thread(self.run, sent)
        if self.lost_answers:
            self.lost_answers -= 1
            return web.json_response({}, status=504)
        return web.json_response(answer, status=201)

    async def _get(self, request: web.Request) -> web.Response:
        stored = self.objects.get((request.match_info["namespace"], request.match_info["name"]))
        return web.json_response(stored or {}, status=200 if stored else 404)

    async def _patch(self, request: web.Request) -> web.Response:
        if self.has_conflict:
            return web.json_response({"reason": "Conflict"}, status=409)
        result = self.objects[request.match_info["namespace"], request.match_info["name"]]
        assert request.content_type == "application/merge-patch+json"
        change = json.loads(await request.text())
        result["metadata"]["annotations"] |= change["metadata"]["annotations"]
        result["spec"] |= change["spec"]
        return web.json_response(result)

    async def _list(self, request: web.Request) -> web.Response:
        """Answer with pages of two objects."""
        self.lists += 1
        label = request.query["labelSelector"]
        names = sorted(
            name
            for (namespace, name), value in self.objects.items()
            if namespace == request.match_info["namespace"] and label in value["metadata"]["labels"]
        )
        start = int(request.query["continue"] or 0)
        page = names[start : start + 2]
        more = str(start + 2) if len(names) > start + 2 else ""
        items = [
            {"metadata": self.objects[request.match_info["namespace"], name]["metadata"]}
            for name in page
        ]
        return web.json_response({"items": items, "metadata": {"continue": more}})


@contextmanager
def losing_answers(cluster: FakeCluster, count: int) -> Iterator[None]:
    """Lose the answers to the next created objects of the block."""
    cluster.lost_answers = count
    yield
    assert cluster.lost_answers == 0
