"""What the operator makes sure of before it starts."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from batchinference_operator.runtime.preflight import NotReady, check_api
from support.servers.scripted_http import Answer, Serve, Server, answering

JOBS = "batchinferences.batchinference.dev"
RAY_JOBS = "rayjobs.ray.io"
LIST = answering(200, {"kind": "List", "items": []})
UNKNOWN = answering(404, "404 page not found\n", "text/plain")


def forbidden(plural: str) -> Answer:
    words = f'{plural} is forbidden: User "operator" cannot list resource "{plural}"'
    return answering(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": words})


def by_kind(jobs: Answer = LIST, ray_jobs: Answer = LIST) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (ray_jobs if "/apis/ray.io/" in request.path else jobs)(request)

    return answer


async def check(server: Server, namespaces: Sequence[str] = ()) -> None:
    async with ApiClient(Configuration(host=server.url)) as client:
        await check_api(client, namespaces)


@pytest.mark.parametrize(
    ("namespaces", "scope"),
    [([], ""), (["team-a"], "/namespaces/team-a"), (["team-b", "team-a"], "/namespaces/team-b")],
    ids=["everywhere", "one-namespace", "the-first-of-several"],
)
async def test_it_lists_one_object_of_each_kind_where_the_operator_works(
    serve: Serve, namespaces: list[str], scope: str
) -> None:
    server = await serve(by_kind())
    await check(server, namespaces)
    assert [(asked.method, asked.path, asked.query) for asked in server.requests] == [
        ("GET", f"/apis/batchinference.dev/v1alpha1{scope}/batchinferences", {"limit": "1"}),
        ("GET", f"/apis/ray.io/v1{scope}/rayjobs", {"limit": "1"}),
    ]


@pytest.mark.parametrize("namespaces", [[], ["team"]], ids=["everywhere", "one-namespace"])
async def test_a_missing_crd_of_ours_is_named_with_the_way_to_get_it(
    serve: Serve, namespaces: list[str]
) -> None:
    with pytest.raises(NotReady, match=JOBS) as problem:
        await check(await serve(by_kind(jobs=UNKNOWN)), namespaces)
    assert "crds.enabled=true" in str(problem.value)


@pytest.mark.parametrize("namespaces", [[], ["team"]], ids=["everywhere", "one-namespace"])
async def test_a_missing_kuberay_is_named_with_the_way_to_get_it(
    serve: Serve, namespaces: list[str]
) -> None:
    with pytest.raises(NotReady, match=RAY_JOBS) as problem:
        await check(await serve(by_kind(ray_jobs=UNKNOWN)), namespaces)
    assert "kuberay.enabled=true" in str(problem.value)
    assert "v1" in str(problem.value)


@pytest.mark.parametrize(
    ("namespaces", "where"),
    [([], "in all namespaces"), (["team"], "in namespace team")],
    ids=["everywhere", "one-namespace"],
)
async def test_a_missing_right_is_named_with_its_place(
    serve: Serve, namespaces: list[str], where: str
) -> None:
    for answer, name in (
        (by_kind(jobs=forbidden("batchinferences")), JOBS),
        (by_kind(ray_jobs=forbidden("rayjobs")), RAY_JOBS),
    ):
        with pytest.raises(NotReady) as problem:
            await check(await serve(answer), namespaces)
        message = str(problem.value)
        assert f"the right to list {name} {where} is missing" in message
        assert "cannot list resource" in message, "the server's words tell whose right it is"


async def test_an_api_server_that_cannot_be_reached_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(NotReady, match=f"cannot be reached: .*127.0.0.1:{port}"):
        await check(Server(LIST, port))


async def test_any_other_refusal_is_passed_on(serve: Serve) -> None:
    broken = answering(500, {"kind": "Status", "message": "etcd is away"})
    with pytest.raises(NotReady, match=f"cannot list {JOBS} in all namespaces: 500: etcd is away"):
        await check(await serve(by_kind(jobs=broken)))
