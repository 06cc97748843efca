"""The gateway to the API server, over real HTTP. The server may be busy, return errors or not
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kopf import ConnectionInfo

from batchinference.rendering import KubeRayDeadlines
from batchinference_operator.kube.api_errors import Conflict, Refused, Unreachable
from batchinference_operator.kube.api_session import open_session
from batchinference_operator.kube.kube_client import MAX_EVENTS, KubeClient
from batchinference_operator.kube.object_client import MAX_LISTS, PAGE, path_of
from batchinference_operator.kube.rate_limiter import RateLimiter
from batchinference_operator.status.conditions import MAX_MESSAGE
from batchinference_operator.status.ray_job_view import RayJobView
from plugins.messages import Messages
from support.operator.objects import NAMESPACE, owner, ray_job_body
from support.servers.ports import free_port
from support.servers.scripted_http import Answer, Serve, Server, answering

Connect = Callable[[Answer], Awaitable[tuple[KubeClient, Server]]]
JOBS = f"/apis/batchinference.dev/v1beta1/namespaces/{NAMESPACE}/batchinferences"
RAY_JOBS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayjobs"
RAY_CLUSTERS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
PATCH = {"phase": "Running", "progress": {"eta": None}}
RAY_JOB = RayJobView.of(ray_job_body(rayClusterName=None))
RAY_JOB_WITH_CLUSTER = RayJobView.of(ray_job_body(rayClusterName="job-1-abcde"))


def status(code: int, reason: str, message: str = "boom") -> dict[str, Any]:
    """Return the Status object with which an API server answers a failed request."""
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": message}  # fmt: skip


NOT_FOUND = answering(404, status(404, "NotFound"))
UNKNOWN_KIND = answering(404, "404 page not found\n", "text/plain")
REFUSALS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


def body(kind: str) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "x", "namespace": NAMESPACE}, "data": {"a": "b"}}


Call = Callable[[KubeClient], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "create": lambda api: api.create(body("RayJob")),
    "get": lambda api: api.get_object("RayJob", NAMESPACE, "job-1"),
    "release": lambda api: api.release_cluster(NAMESPACE, RAY_JOB),
    "limit": lambda api: api.set_deadlines(NAMESPACE, RAY_JOB, KubeRayDeadlines(7200)),
    "release pods": lambda api: api.release_pods(NAMESPACE, RAY_JOB, "2026-03-01T12:00:00Z"),
    "remove": lambda api: api.delete_ray_job(NAMESPACE, RAY_JOB),
    "delete job": lambda api: api.delete_job(NAMESPACE, "job", "uid-of-job", resourceVersion="41"),
    "patch status": lambda api: api.patch_status(NAMESPACE, "job", "41", PATCH),
    "warning": lambda api: api.last_warning(NAMESPACE, "Pod", "job-1-head"),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ConfigMap", f"/api/v1/namespaces/{NAMESPACE}/configmaps"),
        ("Secret", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("PodDisruptionBudget", f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"),
        ("RayJob", RAY_JOBS),
    ],
)
async def test_create_posts_to_the_path_of_the_kind(connect: Connect, kind: str, path: str) -> None:
    api, server = await connect(answering(201, body(kind)))
    await api.create(body(kind))
    (sent,) = server.requests
    assert (sent.method, sent.path, sent.body) == ("POST", path, body(kind))
    assert sent.headers["Content-Type"] == "application/json"
    assert sent.query == {"fieldValidation": "Strict"}


@pytest.mark.parametrize(
    ("call", "path", "patch"),
    [
        ("patch status", f"{JOBS}/job/status",
         {"metadata": {"resourceVersion": "41"}, "status": PATCH}),
        ("release", f"{RAY_JOBS}/job-1",
         {"metadata": {"uid": "uid-of-job-1"}, "spec": {"ttlSecondsAfterFinished": 0}}),
        ("limit", f"{RAY_JOBS}/job-1",
         {"metadata": {"uid": "uid-of-job-1"},
          "spec": {"activeDeadlineSeconds": 7200, "preRunningDeadlineSeconds": None,
                   "ttlSecondsAfterFinished": 600}}),
    ],
)  # fmt: skip
async def test_patches_are_merge_patches(
    connect: Connect, call: str, path: str, patch: object
) -> None:
    api, server = await connect(answering(200, {}))
    assert (await CALLS[call](api) is not None) == (call == "patch status")
    (sent,) = server.requests
    assert (sent.method, sent.path, sent.body) == ("PATCH", path, patch)
    assert sent.headers["Content-Type"] == "application/merge-patch+json"


def cluster_of(uid: str) -> dict[str, Any]:
    """Return a RayCluster that the RayJob with this uid owns."""
    return {"metadata": {"uid": "uid-of-cluster", "ownerReferences": [owner(uid, "RayJob")]}}


async def test_release_deletes_the_ray_cluster_first(connect: Connect) -> None:
    """KubeRay may be down, and a released RayJob is not reconciled again."""
    api, server = await connect(answering(200, cluster_of("uid-of-job-1")))
    await api.release_cluster(NAMESPACE, RAY_JOB_WITH_CLUSTER)
    assert [(sent.method, sent.path) for sent in server.requests] == [
        ("GET", f"{RAY_CLUSTERS}/job-1-abcde"),
        ("DELETE", f"{RAY_CLUSTERS}/job-1-abcde"),
        ("PATCH", f"{RAY_JOBS}/job-1"),
    ]


GROUPS = [{"groupName": "gpu", "replicas": 2, "minReplicas": 1, "maxReplicas": 8, "template": {}}]
NONE = {"replicas": 0, "minReplicas": 0, "maxReplicas": 0}


async def test_workers_are_removed_from_an_unchanged_cluster(connect: Connect) -> None:
    """The autoscaler cannot add workers beyond the maximum of a group."""
    cluster = cluster_of("uid-of-job-1") | {"spec": {"workerGroupSpecs": GROUPS}}
    cluster["metadata"]["resourceVersion"] = "7"
    api, server = await connect(answering(200, cluster))
    await api.remove_workers(NAMESPACE, RAY_JOB_WITH_CLUSTER)
    _, sent = server.requests
    assert (sent.method, sent.path) == ("PATCH", f"{RAY_CLUSTERS}/job-1-abcde")
    assert sent.body == {
        "metadata": {"uid": "uid-of-cluster", "resourceVersion": "7"},
        "spec": {"enableInTreeAutoscaling": False, "workerGroupSpecs": [GROUPS[0] | NONE]},
    }


@pytest.mark.parametrize(
    ("owner_uid", "groups"),
    [("uid-of-job-1", [GROUPS[0] | NONE]), ("uid-of-job-1", []), ("uid-of-another", GROUPS)],
    ids=["removed", "no-groups", "other-owner"],
)
async def test_cluster_without_own_workers_is_not_changed(
    connect: Connect, owner_uid: str, groups: list[dict[str, Any]]
) -> None:
    cluster = cluster_of(owner_uid) | {"spec": {"workerGroupSpecs": groups}}
    api, server = await connect(answering(200, cluster))
    await api.remove_workers(NAMESPACE, RAY_JOB_WITH_CLUSTER)
    assert [sent.method for sent in server.requests] == ["GET"]


async def test_get_returns_the_object(connect: Connect) -> None:
    api, server = await connect(answering(200, ray_job_body(jobStatus="RUNNING")))
    assert await api.get_object("RayJob", NAMESPACE, "job-1") == ray_job_body(jobStatus="RUNNING")
    (sent,) = server.requests
    assert (sent.method, sent.path, sent.body) == ("GET", f"{RAY_JOBS}/job-1", None)


@pytest.mark.parametrize("seen", [RAY_JOB, RAY_JOB_WITH_CLUSTER], ids=["no-cluster", "cluster"])
async def test_remove_deletes_ray_job_and_cluster_by_uid(connect: Connect, seen: Any) -> None:
    api, server = await connect(answering(200, cluster_of("uid-of-job-1")))
    await api.delete_ray_job(NAMESPACE, seen)
    first, *others = [sent for sent in server.requests if sent.method == "DELETE"]
    assert (first.method, first.path) == ("DELETE", f"{RAY_JOBS}/job-1")
    assert first.body["preconditions"] == {"uid": "uid-of-job-1"}
    expected = [("DELETE", f"{RAY_CLUSTERS}/{seen.cluster}")] if seen.cluster else []
    assert [(sent.method, sent.path) for sent in others] == expected
    assert {sent.body["propagationPolicy"] for sent in (first, *others)} == {"Background"}
    assert [sent.body["preconditions"]["uid"] for sent in others] == ["uid-of-cluster"][
        : len(others)
    ]


async def test_a_job_is_deleted_only_in_the_observed_version(connect: Connect) -> None:
    api, server = await connect(answering(409, status(409, "Conflict")))
    await api.delete_job(NAMESPACE, "job", "uid-of-job", resourceVersion="41")
    (sent,) = server.requests
    assert (sent.method, sent.path.rpartition("/")[2]) == ("DELETE", "job")
    preconditions = {"uid": "uid-of-job", "resourceVersion": "41"}
    assert sent.body == {"propagationPolicy": "Background", "preconditions": preconditions}


async def test_cluster_of_another_ray_job_is_never_deleted(connect: Connect) -> None:
    """The cluster name may come from a status that a user wrote, or name a shared cluster."""
    api, server = await connect(answering(200, cluster_of("uid-of-another")))
    await api.delete_ray_job(NAMESPACE, RAY_JOB_WITH_CLUSTER)
    assert RAY_CLUSTERS not in str([sent.path for sent in server.requests if sent.method != "GET"])


HOSTILE = ["../../victim/rayclusters/pool-1", "../../../../../../api/v1/pods?x=", "..", ".", "a/b",
           "a%2Fb", "a?b", "a#b", "A b", "Not_A_Name", 3, ["a"], {}]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=str)
async def test_text_that_is_no_name_is_never_part_of_a_path(connect: Connect, name: Any) -> None:
    """Users write the status of a RayJob, and the cluster that it selects."""
    api, server = await connect(answering(200, cluster_of("uid-of-job-1")))
    selecting = {"spec": {"clusterSelector": {"ray.io/cluster": name}}}
    for hostile in (
        ray_job_body(rayClusterName=name),
        ray_job_body(rayClusterName=None) | selecting,
    ):
        await api.delete_ray_job(NAMESPACE, RayJobView.of(hostile))
        await api.release_cluster(NAMESPACE, RayJobView.of(hostile))
    assert {sent.path for sent in server.requests} == {f"{RAY_JOBS}/job-1"}
    assert RayJobView.of(ray_job_body(jobId=name)).job_id == ""
    with pytest.raises(ValueError, match="not a name"):
        path_of("RayJob", NAMESPACE, name)


@pytest.mark.parametrize("name", HOSTILE, ids=str)
async def test_no_object_has_a_text_that_is_no_name(connect: Connect, name: Any) -> None:
    """Users write the RayJob of a claim, the schedule of a run, and the cluster of a RayJob. An
    error would stop the pool, the schedules or the deadlines of a job."""
    api, server = await connect(answering(200, cluster_of("uid-of-job-1")))
    result = (
        await api.get_object("RayJob", NAMESPACE, name),
        await api.get_object("RayCluster", NAMESPACE, name),
        await api.get_object("BatchInferenceSchedule", NAMESPACE, name),
    )
    assert (result, server.requests) == ((None,) * 3, [])


async def test_cluster_of_another_namespace_is_never_deleted(connect: Connect) -> None:
    other = cluster_of("uid-of-job-1")
    other["metadata"]["namespace"] = "victim"
    api, server = await connect(answering(200, other))
    await api.delete_ray_job(NAMESPACE, RAY_JOB_WITH_CLUSTER)
    assert RAY_CLUSTERS not in str([sent.path for sent in server.requests if sent.method != "GET"])


async def test_remove_ignores_the_conflict_of_a_recreated_ray_job(connect: Connect) -> None:
    api, _ = await connect(answering(409, status(409, "Conflict")))
    await api.delete_ray_job(NAMESPACE, RAY_JOB)


def event(reason: str, message: str = "", **times: Any) -> dict[str, Any]:
    """Return an Event: a warning if it has a message, otherwise a normal Event."""
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
NO_ACCOUNT = event("NoServiceAccount", "none of that name")
HEAD_CREATED = event("CreatedHeadPod", lastTimestamp="2026-03-01T12:02:00Z")
NO_IMAGE = [
    event("Failed", text, lastTimestamp="2026-03-01T12:12:00Z")
    for text in ('Failed to pull image "a:1": not found', "Error: ErrImagePull",
                 "Error: ImagePullBackOff")
]  # fmt: skip
POD = ("Pod", "job-1-head")
CLUSTER = ("RayCluster", "job-1-xyz")


@pytest.mark.parametrize(
    ("involved", "events", "message"),
    [
        (POD, [], ""),
        (POD, [UNSCHEDULED, SCHEDULED], ""),
        (POD, [UNSCHEDULED], ""),
        (POD, [UNSCHEDULED, SCHEDULED, UNMOUNTED], "no secret"),
        (POD, [MISSING, SCHEDULED, UNMOUNTED], "no volume"),
        (POD, [AT_ONCE, SCHEDULED], "no secret"),
        (POD, [PULLING, SCHEDULED, UNMOUNTED], ""),
        (POD, [UNMOUNTED, SCHEDULED, NAMESERVERS], "no secret"),
        (POD, [NAMESERVERS, SCHEDULED], ""),
        (POD, NO_IMAGE, ""),
        (POD, [UNMOUNTED, *NO_IMAGE], "no secret"),
        (CLUSTER, [NO_ACCOUNT], "none of that name"),
        (CLUSTER, [NO_ACCOUNT, HEAD_CREATED], ""),
    ],
    ids=["none", "has-a-node", "no-node", "mount", "last", "at-once", "healed", "among", "other",
         "pulls-again", "pulls-no-more", "cluster", "healed-cluster"],
)  # fmt: skip
async def test_last_warning_says_why_an_object_does_not_start(
    connect: Connect, involved: tuple[str, str], events: list[Any], message: str
) -> None:
    api, server = await connect(answering(200, {"items": events, "metadata": {}}))
    assert await api.last_warning(NAMESPACE, *involved) == message
    (sent,) = server.requests
    kind, name = involved
    assert sent.path == f"/api/v1/namespaces/{NAMESPACE}/events"
    selector = f"involvedObject.kind={kind},involvedObject.name={name}"
    assert sent.query["fieldSelector"] == selector


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], ""),
        ([{"type": "QuotaReserved", "status": "True", "message": "reserved"}], ""),
        ([{"type": "QuotaReserved", "status": "False", "message": "no quota"}], "no quota"),
        ([{"type": "Evicted", "status": "True", "message": "preempted"}], "preempted"),
        ([{"type": "Evicted", "status": "False", "message": "preempted"}], ""),
    ],
    ids=["none", "admitted", "waiting", "evicted", "evicted-before"],
)
async def test_workload_conditions_say_why_a_ray_job_is_queued(
    connect: Connect, conditions: list[Any], message: str
) -> None:
    workload = {"status": {"conditions": conditions}}
    api, server = await connect(answering(200, {"items": [workload]}))
    assert await api.queued_reason(NAMESPACE, RAY_JOB) == message
    (sent,) = server.requests
    assert sent.path == f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
    assert sent.query["labelSelector"] == "kueue.x-k8s.io/job-uid=uid-of-job-1"


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"items": [{"metadata": {"name": name}} for name in ("cpu", "gpu")]}),
        (200, {"items": []}),
        (403, {"message": "forbidden"}),
    ],
    ids=["queues", "none", "forbidden"],
)
async def test_reason_of_a_missing_queue_lists_the_local_queues(
    connect: Connect, answer: tuple[int, Any], messages: Messages
) -> None:
    missing = "LocalQueue  doesn't exist"
    conditions = [{"type": "QuotaReserved", "status": "False", "message": missing}]
    workload = {"status": {"conditions": conditions}}

    async def answers(request: web.Request) -> web.StreamResponse:
        of_queues = request.path.endswith("/localqueues")
        return await answering(*(answer if of_queues else (200, {"items": [workload]})))(request)

    api, _ = await connect(answers)
    messages.check(await api.queued_reason(NAMESPACE, RAY_JOB))


async def test_missing_kueue_is_the_reason(connect: Connect, messages: Messages) -> None:
    api, _ = await connect(answering(404, "404 page not found"))
    messages.check(await api.queued_reason(NAMESPACE, RAY_JOB))


async def test_large_events_are_read_in_small_pages_and_truncated(connect: Connect) -> None:
    page = {"items": [event("Failed", "x" * 100_000)] * PAGE, "metadata": {"continue": "more"}}
    api, server = await connect(answering(200, page))
    assert await api.last_warning(NAMESPACE, *POD) == "x" * (MAX_MESSAGE - 3) + "..."
    assert len(server.requests) == MAX_EVENTS // PAGE
    assert {request.query["limit"] for request in server.requests} == {str(PAGE)}


async def test_few_pages_are_read_at_the_same_time(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = await connect(NOT_FOUND)
    answer = asyncio.get_running_loop().create_future()
    asked = []

    def request(*call: str) -> asyncio.Future[tuple[int, object]]:
        asked.append(call)
        return answer

    monkeypatch.setattr(api, "_request", request)
    reads = [asyncio.ensure_future(api.last_warning(NAMESPACE, *POD)) for _ in range(10)]
    for _ in reads:
        await asyncio.sleep(0)
    assert len(asked) == MAX_LISTS
    answer.set_result((200, {"items": [], "metadata": {}}))
    await asyncio.gather(*reads)
    assert len(asked) == 10


async def test_runs_of_a_schedule_are_listed_by_label_up_to_a_limit(connect: Connect) -> None:
    page = [body("BatchInference")] * PAGE
    client, server = await connect(
        answering(200, {"items": page, "metadata": {"continue": "more"}})
    )
    assert len([run async for run in client.list_runs(NAMESPACE, "nightly", 3 * PAGE)]) == 3 * PAGE
    assert len(server.requests) == 3
    assert {request.path for request in server.requests} == {JOBS}
    labels = {request.query["labelSelector"] for request in server.requests}
    assert labels == {"batchinference.dev/schedule=nightly"}


@pytest.mark.parametrize(
    ("namespace", "scope"), [("", ""), (NAMESPACE, f"/namespaces/{NAMESPACE}")]
)
async def test_lists_are_read_in_pages(connect: Connect, namespace: str, scope: str) -> None:
    page = {"items": [ray_job_body()], "metadata": {"continue": "a/b"}}
    last = {"items": [ray_job_body("job-2")], "metadata": {}}
    pages = [web.json_response(page), web.json_response(last)]

    async def answer(request: web.Request) -> web.StreamResponse:
        return pages.pop(0)

    api, server = await connect(answer)
    names = [one["metadata"]["name"] async for one in api.list_all("RayJob", namespace)]
    assert names == ["job-1", "job-2"]
    assert {sent.path for sent in server.requests} == {f"/apis/ray.io/v1{scope}/rayjobs"}
    assert [sent.query.get("continue") for sent in server.requests] == [None, "a/b"]
    assert {sent.query["limit"] for sent in server.requests} == {str(PAGE)}
    assert all("labelSelector" in sent.query for sent in server.requests)


@each_call
async def test_every_request_has_the_operators_token(connect: Connect, call: Call) -> None:
    api, server = await connect(answering(200, {"items": [], "metadata": {}}))
    await call(api)
    (sent,) = server.requests
    assert sent.headers["Authorization"] == "Bearer the-operators-own"
    assert sent.headers["Accept"] == "application/json"


async def test_create_accepts_an_existing_object(connect: Connect) -> None:
    api, _ = await connect(answering(409, status(409, "AlreadyExists")))
    await CALLS["create"](api)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # a 409 from quota admission, so the object does not exist
        ("create", 'Operation cannot be fulfilled on resourcequotas "q": the object has been '
                   "modified"),
        ("patch status", "the object has been modified"),
    ],
)  # fmt: skip
async def test_concurrent_change_is_a_conflict(connect: Connect, call: str, message: str) -> None:
    api, _ = await connect(answering(409, status(409, "Conflict", message)))
    with pytest.raises(Conflict, match=message):
        await CALLS[call](api)


async def test_missing_object_is_not_an_error(connect: Connect) -> None:
    api, _ = await connect(NOT_FOUND)
    for call in ("get", "patch status", "release", "limit", "remove"):
        assert await CALLS[call](api) is None, call


@each_call
async def test_unknown_kind_is_not_a_missing_object(connect: Connect, call: Call) -> None:
    """An API server answers like this just after its start, or while a CRD is being replaced. The
    operator must not treat a running job as deleted then."""
    api, _ = await connect(UNKNOWN_KIND)
    with pytest.raises(Refused, match=r"^404: 404 page not found$"):
        await call(api)


@each_call
async def test_refusal_has_the_message_of_the_server(connect: Connect, call: Call) -> None:
    api, server = await connect(NOT_FOUND)
    for code, reason in REFUSALS.items():
        server.answer = answering(code, status(code, reason))
        with pytest.raises(Refused, match=f"^{code}: boom$"):
            await call(api)


@pytest.mark.parametrize(
    ("content", "message"),
    [("<html>Bad Gateway</html>", "<html>Bad Gateway</html>"), ("", ""), ("[1]", "[1]"),
     (b"\xff", "\N{REPLACEMENT CHARACTER}")],
    ids=["html", "empty", "other-json", "binary"],
)  # fmt: skip
async def test_error_that_is_not_a_status_object_is_raised_unchanged(
    connect: Connect, content: Any, message: str
) -> None:
    api, _ = await connect(answering(502, content, "text/html"))
    with pytest.raises(Refused) as refusal:
        await CALLS["create"](api)
    assert str(refusal.value) == f"502: {message}"


BODY = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": NAMESPACE}}


def at_first(problem: Callable[[web.Request], web.Response], times: int) -> Answer:
    """Return a server that fails the first `times` requests and then creates the object."""
    left = [times]

    async def answer(request: web.Request) -> web.StreamResponse:
        left[0] -= 1
        return web.json_response(BODY, status=201) if left[0] < 0 else problem(request)

    return answer


def status_code(code: int, **headers: str) -> Callable[[web.Request], web.Response]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: web.Response(status=code, text="busy", headers=names)


def disconnect(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


def text(_: web.Request) -> web.Response:
    return web.Response(status=200, text="busy")


@pytest.mark.parametrize(
    "problem",
    [*map(status_code, (429, 500, 502, 503, 504)), disconnect, text],
    ids=["429", "500", "502", "503", "504", "disconnect", "text"],
)
async def test_transient_errors_are_retried(connect: Connect, problem: Any) -> None:
    api, server = await connect(at_first(problem, times=2))
    assert await api.create(BODY) == BODY
    assert [request.body for request in server.requests] == [BODY] * 3


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (status_code(503), "503: busy"),
        (disconnect, "disconnected"),
        (text, "200: no JSON object: 'busy'"),
    ],
    ids=["503", "disconnect", "text"],
)
async def test_persistent_errors_are_raised_after_three_tries(
    connect: Connect, problem: Any, message: str
) -> None:
    api, server = await connect(at_first(problem, times=99))
    with pytest.raises(Unreachable, match=message):
        await api.create(BODY)
    assert len(server.requests) == 3


async def test_object_that_is_too_large_for_etcd_is_refused(
    connect: Connect, messages: Messages
) -> None:
    """The answer of the server looks like that of an outage, which is retried without an end."""
    message = "etcdserver: request is too large"
    body = {"kind": "Status", "reason": "", "code": 500, "message": message}
    api, _ = await connect(at_first(lambda _: web.json_response(body, status=500), times=99))
    with messages.raises(Refused) as refused:
        await api.create(BODY)
    assert not isinstance(refused.value, Unreachable)


async def test_missing_server_is_unreachable() -> None:
    session = open_session(ConnectionInfo(server=f"http://127.0.0.1:{free_port()}"))
    async with session.aiohttp_session:
        with pytest.raises(Unreachable, match="Cannot connect"):
            await KubeClient(session, retry_delays=()).create(BODY)


async def test_request_timeout_is_unreachable(serve: Serve) -> None:
    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    session = open_session(ConnectionInfo(server=(await serve(late)).url))
    async with session.aiohttp_session:
        with pytest.raises(Unreachable):
            await KubeClient(session, timeout_seconds=0.05, retry_delays=()).create(BODY)


@pytest.mark.parametrize("code", [400, 403, 422])
async def test_refusal_is_not_retried(connect: Connect, code: int) -> None:
    api, server = await connect(at_first(status_code(code), times=99))
    with pytest.raises(Refused) as refusal:
        await api.create(BODY)
    assert not isinstance(refusal.value, Unreachable)
    assert len(server.requests) == 1


async def test_retry_after_pauses_all_requests(serve: Serve) -> None:
    pauses: list[float] = []

    class RecordedRate(RateLimiter):
        def pause(self, seconds: float) -> None:
            pauses.append(seconds)

    server = await serve(at_first(status_code(429, Retry_After="7"), times=1))
    session = open_session(ConnectionInfo(server=server.url))
    async with session.aiohttp_session:
        await KubeClient(session, RecordedRate(), retry_delays=(0.0,)).create(BODY)
    assert pauses == [7, 0]
