"""The gateway to the API server, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from batchinference_operator.runtime import api_server
from batchinference_operator.runtime.api_server import ApiServer
from batchinference_operator.runtime.exchange import request
from batchinference_operator.runtime.gateway import PAGE, Conflict, Refused
from batchinference_operator.status.observations import RayJobView
from support.operator.objects import NAMESPACE, ray_job_body
from support.servers.scripted_http import Serve, Server, answering

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


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PAUSES", (0.0, 0.0))


@asynccontextmanager
async def gateway_to(server: Server) -> AsyncIterator[ApiServer]:
    configuration = Configuration(host=server.url)
    configuration.api_key["BearerToken"] = "bearer the-operators-own"
    async with ApiClient(configuration) as client:
        yield ApiServer(client)


async def patch_status(gateway: ApiServer) -> object:
    return await gateway.patch_status(NAMESPACE, "job", "41", PATCH)


async def release(gateway: ApiServer) -> None:
    await gateway.release(NAMESPACE, RayJobView.of(ray_job_body(rayClusterName=None)))


async def remove(gateway: ApiServer) -> None:
    await gateway.remove(NAMESPACE, RayJobView.of(ray_job_body(rayClusterName=None)))


async def warning(gateway: ApiServer) -> str:
    return await gateway.warning(NAMESPACE, "Pod", "job-1-head")


async def look_up(gateway: ApiServer) -> Any:
    return await gateway.ray_job(NAMESPACE, "job-1")


async def create(gateway: ApiServer) -> None:
    await gateway.create(body("RayJob"))


REFUSALS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
CALLS = [create, look_up, release, remove, patch_status, warning]


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
        assert await patch_status(gateway) is not None
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("PATCH", f"{JOBS}/job/status")
    assert asked.headers["Content-Type"] == "application/merge-patch+json"
    assert asked.body == {"metadata": {"resourceVersion": "41"}, "status": PATCH}


async def test_a_release_sets_the_wait_to_nothing(serve: Serve) -> None:
    server = await serve(answering(200, {}))
    async with gateway_to(server) as gateway:
        await release(gateway)
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("PATCH", f"{RAY_JOBS}/job-1")
    assert asked.headers["Content-Type"] == "application/merge-patch+json"
    assert asked.body == {"spec": {"ttlSecondsAfterFinished": 0}}


async def test_release_deletes_the_ray_cluster_first(
    serve: Serve,
) -> None:
    """KubeRay may be away. What is released is not looked at again."""
    server = await serve(answering(200, {}))
    async with gateway_to(server) as gateway:
        await gateway.release(NAMESPACE, RayJobView.of(ray_job_body(rayClusterName="job-1-abcde")))
    clusters = RAY_JOBS.replace("rayjobs", "rayclusters")
    assert [(asked.method, asked.path) for asked in server.requests] == [
        ("DELETE", f"{clusters}/job-1-abcde"),
        ("PATCH", f"{RAY_JOBS}/job-1"),
    ]


async def test_a_ray_job_comes_as_the_server_has_it(serve: Serve) -> None:
    there = ray_job_body(jobStatus="RUNNING")
    server = await serve(answering(200, there))
    async with gateway_to(server) as gateway:
        assert await look_up(gateway) == there
    (asked,) = server.requests
    assert (asked.method, asked.path, asked.body) == ("GET", f"{RAY_JOBS}/job-1", None)


@pytest.mark.parametrize("cluster", ["", "job-1-abcde"], ids=["no-cluster", "a-cluster"])
async def test_remove_deletes_ray_job_and_cluster_by_uid(serve: Serve, cluster: str) -> None:
    server = await serve(answering(200, {}))
    seen = RayJobView.of(ray_job_body(rayClusterName=cluster or None))
    async with gateway_to(server) as gateway:
        await gateway.remove(NAMESPACE, seen)
    first, *others = server.requests
    assert (first.method, first.path) == ("DELETE", f"{RAY_JOBS}/job-1")
    assert first.body["preconditions"] == {"uid": "uid-of-job-1"}
    clusters = RAY_JOBS.replace("rayjobs", "rayclusters")
    expected = [("DELETE", f"{clusters}/{cluster}")] if cluster else []
    assert [(asked.method, asked.path) for asked in others] == expected
    for asked in server.requests:
        assert asked.body["propagationPolicy"] == "Background"


async def test_a_namesake_that_is_not_removed_is_no_error(serve: Serve) -> None:
    async with gateway_to(await serve(answering(409, status(409, "Conflict")))) as gateway:
        await remove(gateway)


def event(reason: str, message: str = "", **times: Any) -> dict[str, Any]:
    """It is normal without a message, and a warning with one."""
    return {
        "metadata": {"creationTimestamp": "2026-03-01T12:00:00Z"},
        "type": "Warning" if message else "Normal",
        "reason": reason,
        "message": message or "all is well",
        **times,
    }


UNSCHEDULED = event("FailedScheduling", "no room", eventTime="2026-03-01T12:01:00.000000Z")
SCHEDULED = event("Scheduled", eventTime="2026-03-01T12:02:00.000000Z")
UNMOUNTED = event("FailedMount", "no secret", lastTimestamp="2026-03-01T12:05:00Z", eventTime=None)
MISSING = event("FailedMount", "no volume", series={"lastObservedTime": "2026-03-01T12:09:00.0Z"})
AT_ONCE = event("FailedMount", "no secret", lastTimestamp="2026-03-01T12:02:00Z")
PULLING = event("Pulling", lastTimestamp="2026-03-01T12:10:00Z")
NAMESERVERS = event("DNSConfigForming", "too many", lastTimestamp="2026-03-01T12:11:00Z")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], ""),
        ([UNSCHEDULED, SCHEDULED], ""),
        ([UNSCHEDULED], ""),
        ([UNSCHEDULED, SCHEDULED, UNMOUNTED], "no secret"),
        ([MISSING, SCHEDULED, UNMOUNTED], "no volume"),
        ([AT_ONCE, SCHEDULED], "no secret"),
        ([PULLING, SCHEDULED, UNMOUNTED], ""),
        ([UNMOUNTED, SCHEDULED, NAMESERVERS], "no secret"),
        ([NAMESERVERS, SCHEDULED], ""),
    ],
    ids=["none", "has-a-node", "no-node", "mount", "last", "at-once", "healed", "among", "other"],
)
async def test_last_event_of_a_pod_says_why_it_does_not_start(
    serve: Serve, events: list[Any], words: str
) -> None:
    server = await serve(answering(200, {"items": events}))
    async with gateway_to(server) as gateway:
        assert await warning(gateway) == words
    (asked,) = server.requests
    assert asked.path == f"/api/v1/namespaces/{NAMESPACE}/events"
    assert "involvedObject.name=job-1-head" in asked.query["fieldSelector"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event("NoServiceAccount", "none of that name")], "none of that name"),
        ([event("NoServiceAccount", "none of that name"),
          event("CreatedHeadPod", lastTimestamp="2026-03-01T12:02:00Z")], ""),
    ],
    ids=["warned", "healed"],
)  # fmt: skip
async def test_last_warning_event_of_a_ray_cluster_is_its_trouble(
    serve: Serve, events: list[Any], words: str
) -> None:
    server = await serve(answering(200, {"items": events}))
    async with gateway_to(server) as gateway:
        assert await gateway.warning(NAMESPACE, "RayCluster", "job-1-xyz") == words
    (asked,) = server.requests
    about = "involvedObject.kind=RayCluster,involvedObject.name=job-1-xyz"
    assert asked.query["fieldSelector"] == about


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([], ""),
        ([{"type": "QuotaReserved", "status": "True", "message": "reserved"}], ""),
        ([{"type": "QuotaReserved", "status": "False", "message": "no quota"}], "no quota"),
        ([{"type": "Evicted", "status": "True", "message": "preempted"}], "preempted"),
        ([{"type": "Evicted", "status": "False", "message": "preempted"}], ""),
    ],
    ids=["nothing", "admitted", "waiting", "evicted", "once-evicted"],
)
async def test_kueue_says_why_it_holds_a_ray_job_back(
    serve: Serve, conditions: list[Any], words: str
) -> None:
    server = await serve(answering(200, {"items": [{"status": {"conditions": conditions}}]}))
    async with gateway_to(server) as gateway:
        assert await gateway.why_queued(NAMESPACE, RayJobView.of(ray_job_body())) == words
    (asked,) = server.requests
    assert asked.path == f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
    assert asked.query["labelSelector"] == "kueue.x-k8s.io/job-uid=uid-of-job-1"


async def test_missing_kueue_gives_no_reason(serve: Serve) -> None:
    async with gateway_to(await serve(answering(404, "404 page not found"))) as gateway:
        assert await gateway.why_queued(NAMESPACE, RayJobView.of(ray_job_body())) == ""


async def test_a_job_has_the_pods_that_bear_its_label(serve: Serve) -> None:
    answer = {"items": [{"metadata": {"name": "job-1-head"}}], "metadata": {}}
    server = await serve(answering(200, answer))
    async with gateway_to(server) as gateway:
        assert await gateway.pods(NAMESPACE, "job") == {"job-1-head"}
    (asked,) = server.requests
    assert asked.path == f"/api/v1/namespaces/{NAMESPACE}/pods"
    assert asked.query["labelSelector"] == "batchinference.dev/name=job"


@pytest.mark.parametrize(
    ("namespace", "place"), [("", ""), (NAMESPACE, f"/namespaces/{NAMESPACE}")]
)
async def test_everything_is_listed_in_pages(serve: Serve, namespace: str, place: str) -> None:
    page = {"items": [ray_job_body()], "metadata": {"continue": "a/b"}}
    last = {"items": [ray_job_body("job-2")], "metadata": {}}
    pages = [web.json_response(page), web.json_response(last)]

    async def answer(request: web.Request) -> web.StreamResponse:
        return pages.pop(0)

    server = await serve(answer)
    async with gateway_to(server) as gateway:
        names = [one["metadata"]["name"] async for one in gateway.all("RayJob", namespace)]
    assert names == ["job-1", "job-2"]
    assert {asked.path for asked in server.requests} == {f"/apis/ray.io/v1{place}/rayjobs"}
    assert [asked.query.get("continue") for asked in server.requests] == [None, "a/b"]
    assert {asked.query["limit"] for asked in server.requests} == {str(PAGE)}
    assert all("labelSelector" in asked.query for asked in server.requests)


@pytest.mark.parametrize("call", CALLS)
async def test_every_request_carries_the_operators_token(
    serve: Serve, call: Callable[[ApiServer], Any]
) -> None:
    server = await serve(answering(200, {"items": []}))
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


async def test_missing_object_is_no_error(serve: Serve) -> None:
    async with gateway_to(await serve(NOT_FOUND)) as gateway:
        assert await look_up(gateway) is None
        assert await patch_status(gateway) is None
        await release(gateway)
        await remove(gateway)


@pytest.mark.parametrize("call", CALLS)
async def test_unknown_kind_is_not_a_missing_object(
    serve: Serve, call: Callable[[ApiServer], Any]
) -> None:
    """An API server that has just started, or a CRD that is being replaced, answers like this; a
    running job must not be taken for deleted because of it."""
    async with gateway_to(await serve(UNKNOWN_KIND)) as gateway:
        with pytest.raises(Refused, match=r"^404: 404 page not found$"):
            await call(gateway)


@pytest.mark.parametrize("call", CALLS)
async def test_refusal_carries_the_words_of_the_server(
    serve: Serve, call: Callable[[ApiServer], Any]
) -> None:
    server = await serve(NOT_FOUND)
    async with gateway_to(server) as gateway:
        for code, reason in REFUSALS.items():
            server.answer = answering(code, status(code, reason))
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
