"""The gateway to the API server, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, Configuration

from batchinference_operator.runtime.gateway import ApiServer, Conflict, Refused, request
from support.http_servers import Serve, Server, answering
from support.operator_objects import NAMESPACE, ray_job_body

JOBS = f"/apis/batchinference.dev/v1alpha1/namespaces/{NAMESPACE}/batchinferences"
RAY_JOBS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayjobs"
PATCH = {"phase": "Running", "progress": {"eta": None}}


def status(code: int, reason: str, message: str = "in the server's words") -> dict[str, Any]:
    """What an API server answers when it does not do what it was asked."""
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": message}  # fmt: skip


NOT_FOUND = answering(404, status(404, "NotFound"))
UNKNOWN_KIND = answering(404, "404 page not found\n", "text/plain")


def body(kind: str) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "x", "namespace": NAMESPACE}, "data": {"a": "b"}}


@asynccontextmanager
async def gateway_to(server: Server) -> AsyncIterator[ApiServer]:
    configuration = Configuration(host=server.url)
    configuration.api_key["BearerToken"] = "bearer the-operators-own"
    async with ApiClient(configuration) as client:
        yield ApiServer(client)


async def patch_status(gateway: ApiServer) -> bool:
    return await gateway.patch_status(NAMESPACE, "job", "41", PATCH)


async def release(gateway: ApiServer) -> None:
    await gateway.release(NAMESPACE, "job-1")


async def look_up(gateway: ApiServer) -> Any:
    return await gateway.ray_job(NAMESPACE, "job-1")


async def create(gateway: ApiServer) -> None:
    await gateway.create(body("RayJob"))


CALLS = [create, look_up, release, patch_status]


# --- what is sent -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ConfigMap", f"/api/v1/namespaces/{NAMESPACE}/configmaps"),
        ("Secret", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("RayJob", RAY_JOBS),
    ],
)
async def test_each_kind_is_created_where_it_belongs(serve: Serve, kind: str, path: str) -> None:
    server = await serve(answering(201, body(kind)))
    async with gateway_to(server) as gateway:
        await gateway.create(body(kind))
    (asked,) = server.requests
    assert (asked.method, asked.path, asked.body) == ("POST", path, body(kind))
    assert asked.headers["Content-Type"] == "application/json"


async def test_a_status_is_one_merge_patch_that_names_its_version(serve: Serve) -> None:
    server = await serve(answering(200, {}))
    async with gateway_to(server) as gateway:
        assert await patch_status(gateway)
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("PATCH", f"{JOBS}/job/status")
    assert asked.headers["Content-Type"] == "application/merge-patch+json"
    assert asked.body == {"metadata": {"resourceVersion": "41"}, "status": PATCH}


async def test_a_release_sets_the_wait_to_nothing_and_touches_nothing_else(serve: Serve) -> None:
    server = await serve(answering(200, {}))
    async with gateway_to(server) as gateway:
        await release(gateway)
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("PATCH", f"{RAY_JOBS}/job-1")
    assert asked.headers["Content-Type"] == "application/merge-patch+json"
    assert asked.body == {"spec": {"ttlSecondsAfterFinished": 0}}


async def test_a_ray_job_comes_as_the_server_has_it(serve: Serve) -> None:
    there = ray_job_body(jobStatus="RUNNING")
    server = await serve(answering(200, there))
    async with gateway_to(server) as gateway:
        assert await look_up(gateway) == there
    (asked,) = server.requests
    assert (asked.method, asked.path, asked.body) == ("GET", f"{RAY_JOBS}/job-1", None)


@pytest.mark.parametrize("call", CALLS)
async def test_every_request_carries_the_operators_token(
    serve: Serve, call: Callable[[ApiServer], Any]
) -> None:
    server = await serve(answering(200, {}))
    async with gateway_to(server) as gateway:
        await call(gateway)
    (asked,) = server.requests
    assert asked.headers["Authorization"] == "bearer the-operators-own"
    assert asked.headers["Accept"] == "application/json"


# --- what comes back --------------------------------------------------------------------


async def test_an_object_that_exists_already_is_as_good_as_created(serve: Serve) -> None:
    server = await serve(answering(409, status(409, "AlreadyExists")))
    async with gateway_to(server) as gateway:
        await create(gateway)


async def test_a_quota_that_was_changed_meanwhile_has_created_nothing(serve: Serve) -> None:
    """Such a 409 comes from admission; the object does not exist."""
    words = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
    server = await serve(answering(409, status(409, "Conflict", words)))
    async with gateway_to(server) as gateway:
        with pytest.raises(Conflict, match="resourcequotas"):
            await create(gateway)


async def test_a_job_that_has_changed_is_a_conflict(serve: Serve) -> None:
    server = await serve(answering(409, status(409, "Conflict", "the object has been modified")))
    async with gateway_to(server) as gateway:
        with pytest.raises(Conflict, match="has been modified"):
            await patch_status(gateway)


async def test_what_is_gone_is_no_error(serve: Serve) -> None:
    async with gateway_to(await serve(NOT_FOUND)) as gateway:
        assert await look_up(gateway) is None
        assert await patch_status(gateway) is False
        await release(gateway)


@pytest.mark.parametrize("call", CALLS)
async def test_a_kind_that_the_server_does_not_know_is_not_an_object_that_is_gone(
    serve: Serve, call: Callable[[ApiServer], Any]
) -> None:
    """An API server that has just started, or a CRD that is being replaced, answers like this; a
    running job must not be taken for deleted because of it."""
    async with gateway_to(await serve(UNKNOWN_KIND)) as gateway:
        with pytest.raises(Refused, match=r"^404: 404 page not found$"):
            await call(gateway)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (400, "BadRequest"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (422, "Invalid"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
async def test_a_refusal_is_told_in_the_servers_words(
    serve: Serve, call: Callable[[ApiServer], Any], code: int, reason: str
) -> None:
    async with gateway_to(await serve(answering(code, status(code, reason)))) as gateway:
        with pytest.raises(Refused, match=f"^{code}: in the server's words$"):
            await call(gateway)


@pytest.mark.parametrize(
    ("content", "words"),
    [("<html>Bad Gateway</html>", "<html>Bad Gateway</html>"), ("", ""), ("[1]", "[1]"),
     (b"\xff", "\N{REPLACEMENT CHARACTER}")],
    ids=["html", "nothing", "other-json", "no-text"],
)  # fmt: skip
async def test_words_that_are_not_the_api_servers_own_are_passed_on(
    serve: Serve, content: Any, words: str
) -> None:
    async with gateway_to(await serve(answering(502, content, "text/html"))) as gateway:
        with pytest.raises(Refused) as refusal:
            await create(gateway)
    assert str(refusal.value) == f"502: {words}"


async def test_a_request_gives_status_and_plain_data(serve: Serve) -> None:
    server = await serve(answering(200, {"items": [1]}))
    async with ApiClient(Configuration(host=server.url)) as client:
        assert await request(client, "GET", "/anything?limit=1") == (200, {"items": [1]})
    assert server.requests[0].query == {"limit": "1"}
