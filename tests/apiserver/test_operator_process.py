"""The operator runs as a process against a scripted API server over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from batchinference.rendering import NAME_LABEL
from support.operator.fake_cluster import apply_merge_patch
from support.operator.objects import NAMESPACE, job_body, pod_body
from support.servers.kubeconfig import write_kubeconfig
from support.servers.ports import free_port
from support.servers.scripted_http import Request, Serve, Server, served

KINDS = {
    "/apis/batchinference.dev/v1beta1": {
        "batchinferences": "BatchInference",
        "batchinferenceschedules": "BatchInferenceSchedule",
    },
    "/apis/ray.io/v1": {"rayjobs": "RayJob"},
    # kopf waits until discovery has returned the kinds that it may need
    "/apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
    "/api/v1": {"pods": "Pod", "namespaces": "Namespace", "events": "Event"},
}
PREFIX = "BATCHINFERENCE_OPERATOR_"


def _group(root: str) -> dict[str, Any]:
    _, _, group, version = root.split("/")
    versions = [{"groupVersion": f"{group}/{version}", "version": version}]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _discovery() -> dict[str, Any]:
    """Return the discovery documents of an API server, by path."""
    result: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35"},
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [_group(root) for root in KINDS if root != "/api/v1"]},
    }
    for root, kinds in KINDS.items():
        result[root] = {"resources": [_resource(*each) for each in kinds.items()]}
    return result


def _resource(plural: str, kind: str) -> dict[str, Any]:
    namespaced = plural not in {"namespaces", "customresourcedefinitions"}
    names = {"name": plural, "singularName": kind.lower(), "kind": kind}
    return {**names, "namespaced": namespaced, "verbs": ["list", "watch", "patch"]}


@dataclass
class ScriptedApiServer:
    """An API server with one BatchInference. A watch sends only the events of a test."""

    pods_listed: asyncio.Event = field(default_factory=asyncio.Event)
    """The server answers the list of pods only after this event."""
    pods_flood: asyncio.Event = field(default_factory=asyncio.Event)
    """After this event, the watch of pods sends events endlessly."""
    ray_jobs_fail: bool = False
    unauthorized: bool = False
    forbidden: str = ""
    """A namespace in which the server answers requests with 403."""
    jobs_readable: bool = False
    """Whether the server answers requests for the jobs of that namespace."""
    watches_break: asyncio.Event = field(default_factory=asyncio.Event)
    """After this event, the watch of jobs answers with an error that kopf cannot handle."""
    created: dict[str, Any] = field(default_factory=dict)
    """Created objects by path."""
    job_watches: int = 0
    """The number of watches of jobs that were begun."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        plural = request.path.rsplit("/", 1)[-1]
        discovery = _discovery()
        if self._is_missing(request):
            status = {"kind": "Status", "code": 404, "reason": "NotFound"}
            return web.json_response(status, status=404)
        if self._is_forbidden(request, plural):
            return web.json_response({"kind": "Status", "code": 403}, status=403)
        if request.path in discovery:
            return web.json_response(discovery[request.path])
        if "watch" in request.query:
            return await self._watch(request, plural)
        if request.path in self.created:
            return await self._stored(request)
        if request.method == "GET":
            if plural == "pods":
                await self.pods_listed.wait()
            namespace = request.path.split("/")[-2]
            items = [job_body(namespace=namespace)] if plural == "batchinferences" else []
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        if request.method == "POST":
            return await self._create(request)
        written = (await request.json()).get("status", {})
        return web.json_response(job_body(resourceVersion="2", status=written))

    def _is_forbidden(self, request: web.Request, plural: str) -> bool:
        readable = self.jobs_readable and plural == "batchinferences"
        inside = f"/namespaces/{self.forbidden}/" in request.path
        return bool(self.forbidden) and inside and not readable

    def _is_missing(self, request: web.Request) -> bool:
        single = any(kind in request.path for kind in ("/leases/", "/rayjobs/"))
        return single and request.path not in self.created

    async def _stored(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            self.created[request.path] = await request.json()
        return web.json_response(self.created[request.path])

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        metadata = {**body["metadata"], "uid": "uid", "resourceVersion": "2"}
        created = {**body, "metadata": metadata}
        self.created[f"{request.path}/{metadata['name']}"] = created
        return web.json_response(created, status=201)

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        if self.unauthorized:
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if self.ray_jobs_fail and plural == "rayjobs":
            raise ConnectionResetError
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                if plural == "batchinferences":
                    self.job_watches += 1
                    await self.watches_break.wait()
                    self.watches_break.clear()
                    error = {"type": "ERROR", "object": {"kind": "Status", "code": 500}}
                    await response.write(json.dumps(error).encode() + b"\n")
                await self.pods_flood.wait()
                for number in itertools.count(2) if plural == "pods" else ():
                    await response.write(json.dumps(_pod_event(number)).encode() + b"\n")
                await asyncio.Event().wait()
        return response


def _pod_event(number: int) -> dict[str, Any]:
    """Return an event of one of many pods whose job was deleted."""
    labels = {NAME_LABEL: "gone"}
    metadata = {"uid": f"uid-{number}", "resourceVersion": str(number), "labels": labels}
    body = apply_merge_patch(pod_body(f"job-1-{number}"), {"metadata": metadata})
    return {"type": "ADDED", "object": body}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Yield a function that starts a server, which stops at the end of the test."""
    async with AsyncExitStack() as stack:
        yield lambda api: stack.enter_async_context(served(api))


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Return the environment of the operator, without the kubeconfig."""
    (tmp_path / "key").write_text("a key of at least thirty-two bytes")
    (tmp_path / "defaults.yaml").write_text("image: registry/pipeline:1\n")
    return {
        "HOME": str(tmp_path),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        f"{PREFIX}TOKEN_KEY_FILE": str(tmp_path / "key"),
        f"{PREFIX}DEFAULTS_FILE": str(tmp_path / "defaults.yaml"),
        f"{PREFIX}NAMESPACES": NAMESPACE,
        f"{PREFIX}HEALTH_PORT": str(free_port()),
    }


@asynccontextmanager
async def operator(environment: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the operator as a process. Kill the process if it runs at the end of the block."""
    command = "from batchinference_operator.main import main; main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            print((await process.communicate())[1].decode())


async def wait_for_requests(
    server: Server, wanted: Callable[[Request], bool], times: int = 1
) -> None:
    """Wait until the server has received `times` wanted requests."""
    async with asyncio.timeout(30):
        while sum(map(wanted, server.requests)) < times:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)


async def get_endpoint(environment: dict[str, str], path: str) -> tuple[int, str]:
    """Return the status code and the text of one of the operator's endpoints."""
    url = f"http://127.0.0.1:{environment[PREFIX + 'HEALTH_PORT']}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def wait_for_status(environment: dict[str, str], path: str, status: int) -> str:
    """Wait until an endpoint has this status code, and return its text."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                endpoint, text = await get_endpoint(environment, path)
                if endpoint == status:
                    return text
            await asyncio.sleep(0.05)


async def is_unhealthy(environment: dict[str, str]) -> bool:
    """Return whether /healthz fails."""
    with contextlib.suppress(aiohttp.ClientConnectionError):
        return (await get_endpoint(environment, "/healthz"))[0] == 503
    return False


def is_creation(request: Request, plural: str) -> bool:
    return request.method == "POST" and request.path.endswith(f"/{plural}")


async def wait_for_jobs(environment: dict[str, str], count: int) -> None:
    """Wait until the operator knows this number of jobs."""
    known = 0.0
    async with asyncio.timeout(30):
        while known != count:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                series = samples((await get_endpoint(environment, "/metrics"))[1])
                known = sum(series[key] for key in series if key[0] == "batchinference_jobs")
            await asyncio.sleep(0.05)


def samples(text: str) -> dict[tuple[str, frozenset[str]], float]:
    """Return the samples of a scrape by name and label values."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_operator_starts_runs_and_stops_on_sigterm(
    serve: Serve, settings: dict[str, str]
) -> None:
    api = ScriptedApiServer()
    server = await serve(api)
    write_kubeconfig(Path(settings["KUBECONFIG"]), server.url, "t")
    async with operator(settings) as process:
        await check_readiness(settings, api)
        await wait_for_requests(server, lambda request: "watch" in request.query, times=3)
        await wait_for_requests(server, lambda request: request.path.endswith("/events"))
        await wait_for_requests(server, lambda request: request.path.endswith("/job/status"))
        check_metrics((await get_endpoint(settings, "/metrics"))[1])
        api.pods_flood.set()
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    check_selectors(server)
    created = [request.body["kind"] for request in server.requests if request.method == "POST"]
    assert created == ["Lease", "ConfigMap", "RayJob", "Secret", "PodDisruptionBudget", "Event"]
    (lease,) = (body for path, body in api.created.items() if "/leases/" in path)
    assert lease["spec"]["holderIdentity"] == "", "it is released"
    assert [line for line in log.decode().splitlines() if json.loads(line)["level"] != "info"] == []


async def check_readiness(environment: dict[str, str], api: ScriptedApiServer) -> None:
    """Check that the operator is ready after all initial lists, and healthy before that."""
    text = await wait_for_status(environment, "/readyz", 503)
    while text.count("\n") > 1 or "leader" in text:
        text = await wait_for_status(environment, "/readyz", 503)
    assert text.rstrip().endswith(f"/api/v1/namespaces/{NAMESPACE}/pods")
    assert (await get_endpoint(environment, "/healthz"))[0] == 200
    api.pods_listed.set()
    await wait_for_status(environment, "/readyz", 200)


def check_selectors(server: Server) -> None:
    """Check that the operator watches only its own objects."""
    selectors = {
        request.path.rsplit("/", 1)[-1]: request.query.get("labelSelector")
        for request in server.requests
        if "watch" in request.query
    }
    assert selectors == {
        "batchinferences": None,
        "batchinferenceschedules": None,
        "rayjobs": NAME_LABEL,
        "pods": NAME_LABEL,
    }


def check_metrics(text: str) -> None:
    series = samples(text)

    def value(name: str, *labels: str) -> float | None:
        return series.get((f"batchinference_{name}", frozenset(labels)))

    assert value("api_requests_total", "create", "rayjobs", "201") == 1
    assert value("api_requests_total", "patch", "batchinferences/status", "200") == 1
    assert value("api_requests_total", "watch", "pods", "200") == 1
    assert value("api_requests_total", "watch", "batchinferences", "200") == 1, "kopf's count too"
    assert value("status_writes_total", "written") == 1
    assert value("jobs", NAMESPACE, "Starting") == 1
    assert value("queue_depth") == 0
    assert (value("reconcile_seconds_count") or 0) >= 1
    assert series["process_resident_memory_bytes", frozenset()] > 0


async def test_health_depends_on_watches_and_refused_credentials_stop_the_operator(
    serve: Serve, settings: dict[str, str]
) -> None:
    api = ScriptedApiServer()
    api.pods_listed.set()
    settings[f"{PREFIX}WATCH_SECONDS"] = "1"
    server = await serve(api)
    write_kubeconfig(Path(settings["KUBECONFIG"]), server.url, "t")
    async with operator(settings) as process:
        await wait_for_status(settings, "/readyz", 200)
        api.ray_jobs_fail = True
        assert "/rayjobs" in await wait_for_status(settings, "/healthz", 503)
        assert "/pods" not in (await get_endpoint(settings, "/healthz"))[1]
        api.ray_jobs_fail = False
        await wait_for_status(settings, "/healthz", 200)
        api.unauthorized = True
        before = len(server.requests)
        async with asyncio.timeout(60):
            while process.returncode is None and not await is_unhealthy(settings):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # it is another process
        assert process.returncode in (None, 1), "kopf decides whether it ends by itself"
    watches = [request for request in server.requests[before:] if "watch" in request.query]
    assert len(watches) < 20, "the same credentials are not tried repeatedly"


@pytest.mark.parametrize("jobs_readable", [False, True], ids=["nothing-readable", "jobs-readable"])
async def test_lost_namespace_does_not_stop_the_others(
    serve: Serve, settings: dict[str, str], jobs_readable: bool
) -> None:
    """Jobs of the lost namespace keep no position in the admission queue."""
    settings[f"{PREFIX}NAMESPACES"] = f"gone,{NAMESPACE}"
    settings[f"{PREFIX}MAX_RUNNING"] = "1"
    api = ScriptedApiServer(forbidden="gone", jobs_readable=jobs_readable)
    server = await serve(api)
    write_kubeconfig(Path(settings["KUBECONFIG"]), server.url, "t")
    async with operator(settings) as process:
        await wait_for_jobs(settings, 1 + jobs_readable)
        api.pods_listed.set()
        await wait_for_status(settings, "/readyz", 200)
        await wait_for_requests(server, lambda request: is_creation(request, "rayjobs"))
        series = samples((await get_endpoint(settings, "/metrics"))[1])
        assert series["batchinference_namespaces_unwatched", frozenset()] == 1
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    lines = [json.loads(line) for line in log.decode().splitlines()]
    problems = [line["message"] for line in lines if line["level"] != "info"]
    assert len(problems) >= 2
    assert [one for one in problems if "gone" not in one] == []


async def test_operator_watches_again_after_an_error_of_a_watch(
    serve: Serve, settings: dict[str, str]
) -> None:
    """If etcd loses its leader for a moment, the API server sends an error to all watches."""
    api = ScriptedApiServer()
    api.pods_listed.set()
    server = await serve(api)
    write_kubeconfig(Path(settings["KUBECONFIG"]), server.url, "t")
    async with operator(settings) as process:
        await wait_for_status(settings, "/readyz", 200)
        before = api.job_watches
        api.watches_break.set()
        async with asyncio.timeout(30):
            while api.job_watches == before:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.02)
        assert process.returncode is None
        await wait_for_status(settings, "/healthz", 200)
