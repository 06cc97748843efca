"""A client that creates the objects that the operator would create, and does nothing else."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import aiohttp

from batchinference.rendering import RAY_API_VERSION, RAY_JOB, Names, Owner, token_secret
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.attempt_objects import create_actions
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobView
from support.documents.minimal import document, model_step
from support.servers.api_server import ADMIN_TOKEN, ApiServer, path_of

Object = dict[str, Any]
Given, Made = TypeVar("Given"), TypeVar("Made")

LARGEST_BYTES = 1_300_000
AT_ONCE = 16
"""Concurrent jobs: the operator's default number of workers."""
_JOB_UID, _RAY_JOB_UID = "uid-of-the-job", "uid-of-the-ray-job"
_SETTINGS = Config(
    PlatformDefaults(image="registry/pipeline:1"), b"a key of at least thirty-two bytes"
)


class PlainClient:
    """Creates objects through the API server. It renders all bodies before it sends any, so that
    its own cost is negligible."""

    def __init__(self, server: ApiServer) -> None:
        self._url = server.url
        self._tls = ssl.create_default_context(cafile=str(server.certificate))

    async def create_jobs(self, namespace: str, numbers: Iterable[int]) -> list[str]:
        """Create BatchInferences and return their uids."""
        bodies = [json.dumps(job(namespace, number)).encode() for number in numbers]
        path = path_of(job(namespace, 0))
        async with self._connected() as post:

            async def create(body: bytes) -> str:
                return await post(path, body)

            return await run_concurrently(create, bodies)

    async def create_largest(self, namespace: str, numbers: Iterable[int]) -> None:
        """Create BatchInferences of the largest size that etcd stores. As Python objects, their
        values would take 37 times the memory of their JSON."""
        for number in numbers:
            body = job(namespace, number)
            values = [{"": {"": 0}}] * (LARGEST_BYTES // 12)
            step = {"callable": "steps:run", "callArgs": {"values": values}}
            body["spec"]["steps"] = [{"name": "large", "python": step}]
            async with self._connected() as post:
                await post(path_of(body), json.dumps(body, separators=(",", ":")).encode())

    async def create_objects(self, namespace: str, uids: list[str]) -> None:
        """Create the ConfigMap, RayJob and Secret of existing jobs, one after the other per job."""
        made = [(uid, objects(namespace, number)) for number, uid in enumerate(uids)]
        async with self._connected() as post:

            async def create(one: tuple[str, list[tuple[str, bytes]]]) -> None:
                await _create(post, *one)

            await run_concurrently(create, made)

    async def create_all(self, namespace: str, numbers: Iterable[int]) -> None:
        """Create BatchInferences, each followed directly by its objects."""
        made = [
            (json.dumps(job(namespace, number)).encode(), objects(namespace, number))
            for number in numbers
        ]
        path = path_of(job(namespace, 0))
        async with self._connected() as post:

            async def create(one: tuple[bytes, list[tuple[str, bytes]]]) -> None:
                body, below = one
                await _create(post, await post(path, body), below)

            await run_concurrently(create, made)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Callable[[str, bytes], Awaitable[str]]]:
        """Yield a function that posts a body to a path and returns the uid of the new object."""
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
        connector = aiohttp.TCPConnector(limit=AT_ONCE, ssl=self._tls)
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

            async def post(path: str, body: bytes) -> str:
                async with session.post(f"{self._url}{path}", data=body) as answer:
                    content = await answer.read()
                    assert answer.status == 201, content
                    return str(json.loads(content)["metadata"]["uid"])

            yield post


async def _create(
    post: Callable[[str, bytes], Awaitable[str]], uid: str, below: list[tuple[str, bytes]]
) -> None:
    last = ""
    for path, body in below:
        owned = body.replace(_JOB_UID.encode(), uid.encode())
        last = await post(path, owned.replace(_RAY_JOB_UID.encode(), last.encode()))


async def run_concurrently(
    work: Callable[[Given], Awaitable[Made]], given: Iterable[Given]
) -> list[Made]:
    """Apply `work` to each value, AT_ONCE at a time, and return the results in order."""
    left = list(enumerate(given))[::-1]
    done: dict[int, Made] = {}

    async def worker() -> None:
        while left:
            number, one = left.pop()
            done[number] = await work(one)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return [done[number] for number in sorted(done)]


def job(namespace: str, number: int) -> Object:
    """Return a job with a model, of a few hundred bytes as is typical."""
    body = document(f"job-{number:05d}", steps=[model_step(resources={"gpu": 1})])
    return {**body, "metadata": {**body["metadata"], "namespace": namespace}}


def objects(namespace: str, number: int) -> list[tuple[str, bytes]]:
    """Return path and body of each object of a job, in the order of their creation."""
    body = job(namespace, number)
    name = body["metadata"]["name"]
    names = Names(name, _JOB_UID, 1)
    view = JobView(namespace, name, _JOB_UID, 1, "1", body["spec"], {})
    owner = Owner(names.ray_job, _RAY_JOB_UID, RAY_JOB, RAY_API_VERSION)
    token = _SETTINGS.token(view, names.ray_job)
    made = create_actions(view, names, _SETTINGS, datetime.now(UTC)).create
    made = (*made, token_secret(namespace, names, token, owner))
    return [(path_of(one), json.dumps(one).encode()) for one in made]
