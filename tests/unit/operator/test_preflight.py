"""The checks that the operator runs before it starts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from aiohttp import web
from kopf import ConnectionInfo

from batchinference_operator.kube.api_session import open_session
from batchinference_operator.preflight import NotReady, check_api
from plugins.messages import Messages
from support.servers.ports import free_port
from support.servers.scripted_http import Answer, Serve, Server, answering

JOBS = "batchinferences.batchinference.dev"
RAY_JOBS = "rayjobs.ray.io"
LIST = answering(200, {"kind": "List", "items": []})
UNKNOWN = answering(404, "404 page not found\n", "text/plain")


def forbidden(plural: str) -> Answer:
    reason = f'{plural} is forbidden: User "operator" cannot list resource "{plural}"'
    return answering(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": reason})


def answers(jobs: Answer = LIST, ray_jobs: Answer = LIST) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (ray_jobs if "/apis/ray.io/" in request.path else jobs)(request)

    return answer


async def check(server: Server, namespaces: Sequence[str] = ()) -> list[str]:
    session = open_session(ConnectionInfo(server=server.url))
    async with session.aiohttp_session:
        return await check_api(session, namespaces)


@pytest.mark.parametrize("namespaces", [[], ["team-b", "team-a"]], ids=["everywhere", "two"])
async def test_each_kind_is_listed_in_each_namespace(serve: Serve, namespaces: list[str]) -> None:
    server = await serve(answers())
    assert await check(server, namespaces) == []
    scopes = [f"/namespaces/{name}" for name in namespaces] or [""]
    assert [(asked.method, asked.path, asked.query) for asked in server.requests] == [
        ("GET", f"/apis/{group}{scope}/{plural}", {"limit": "1"})
        for scope in scopes
        for group, plural in (
            ("batchinference.dev/v1beta1", "batchinferences"),
            ("batchinference.dev/v1beta1", "batchinferenceschedules"),
            ("ray.io/v1", "rayjobs"),
        )
    ]


@pytest.mark.parametrize("refusal", [forbidden("rayjobs"), UNKNOWN], ids=["403", "404"])
async def test_refused_namespace_is_skipped_with_a_warning(
    serve: Serve, caplog: pytest.LogCaptureFixture, refusal: Answer
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (refusal if "/namespaces/gone/" in request.path else LIST)(request)

    assert await check(await serve(answer), ["gone", "team"]) == ["gone"]
    (line,) = caplog.records
    assert (line.levelname, "continues with the other namespaces" in line.message) == (
        "WARNING",
        True,
    )


@pytest.mark.parametrize("namespaces", [[], ["team"]], ids=["everywhere", "one-namespace"])
@pytest.mark.parametrize(
    ("answer", "crd", "remedies"),
    [
        (answers(jobs=UNKNOWN), JOBS, ["crds.enabled=true"]),
        (answers(ray_jobs=UNKNOWN), RAY_JOBS, ["kuberay.enabled=true", "v1"]),
    ],
    ids=["jobs", "ray-jobs"],
)
async def test_missing_crd_is_named_with_its_remedy(
    serve: Serve, namespaces: list[str], answer: Answer, crd: str, remedies: list[str]
) -> None:
    with pytest.raises(NotReady, match=crd) as problem:
        await check(await serve(answer), namespaces)
    assert [remedy for remedy in remedies if remedy not in str(problem.value)] == []


@pytest.mark.parametrize("namespaces", [[], ["team"]], ids=["everywhere", "one-namespace"])
async def test_missing_permission_is_named_with_its_scope(
    serve: Serve, namespaces: list[str], messages: Messages
) -> None:
    for answer in (
        answers(jobs=forbidden("batchinferences")),
        answers(ray_jobs=forbidden("rayjobs")),
    ):
        with messages.raises(NotReady):
            await check(await serve(answer), namespaces)


async def test_unreachable_api_server_is_named() -> None:
    port = free_port()
    with pytest.raises(NotReady, match=f"cannot be reached: .*127.0.0.1:{port}"):
        await check(Server(LIST, port))


async def test_other_errors_are_raised(serve: Serve) -> None:
    broken = answering(500, {"kind": "Status", "message": "etcd is away"})
    with pytest.raises(NotReady, match=f"cannot list {JOBS} in all namespaces: 500: etcd is away"):
        await check(await serve(answers(jobs=broken)))
