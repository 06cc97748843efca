"""The operator as a process, at an API server that a test plays over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from batchinference.rendering import NAME_LABEL
from support.fake_cluster import merged
from support.http_servers import Request, Serve, Server
from support.operator_objects import NAMESPACE, job_body, pod_body

KINDS = {
    "/apis/batchinference.dev/v1alpha1": {"batchinferences": "BatchInference"},
    "/apis/ray.io/v1": {"rayjobs": "RayJob"},
    # kopf does not begin before it has found the kinds that it might need
    "/apis/apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
    "/api/v1": {"pods": "Pod", "namespaces": "Namespace", "events": "Event"},
}
PREFIX = "BATCHINFERENCE_OPERATOR_"


def _group(root: str) -> dict[str, Any]:
    _, _, group, version = root.split("/")
    versions = [{"groupVersion": f"{group}/{version}", "version": version}]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _discovery() -> dict[str, Any]:
    """What an API server tells of its kinds."""
    found: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35"},
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [_group(root) for root in KINDS if root != "/api/v1"]},
    }
    for root, kinds in KINDS.items():
        found[root] = {"resources": [_resource(*each) for each in kinds.items()]}
    return found


def _resource(plural: str, kind: str) -> dict[str, Any]:
    namespaced = plural not in {"namespaces", "customresourcedefinitions"}
    names = {"name": plural, "singularName": kind.lower(), "kind": kind}
    return {**names, "namespaced": namespaced, "verbs": ["list", "watch", "patch"]}


def api_server(*missing: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """An API server with one BatchInference, whose watches stay silent. `missing` kinds are
    unknown to it."""
    discovery = _discovery()

    async def answer(request: web.Request) -> web.StreamResponse:
        plural = request.path.rsplit("/", 1)[-1]
        if plural in missing:
            return web.Response(status=404, text="404 page not found\n")
        if request.path in discovery:
            return web.json_response(discovery[request.path])
        if "watch" in request.query:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await asyncio.sleep(float(request.query["timeoutSeconds"]))
            return response
        if request.method == "GET":
            items = [job_body()] if plural == "batchinferences" else []
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        if request.method == "POST":
            made = await request.json()
            metadata = {**made["metadata"], "uid": "uid", "resourceVersion": "2"}
            return web.json_response({**made, "metadata": metadata}, status=201)
        written = (await request.json()).get("status", {})
        return web.json_response(job_body(resourceVersion="2", status=written))

    return answer


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """A whole environment; the test adds the API server."""
    (tmp_path / "key").write_text("a key of at least sixteen bytes")
    (tmp_path / "defaults.yaml").write_text("image: registry/pipeline:1\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        "HOME": str(tmp_path),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        f"{PREFIX}TOKEN_KEY_FILE": str(tmp_path / "key"),
        f"{PREFIX}DEFAULTS_FILE": str(tmp_path / "defaults.yaml"),
        f"{PREFIX}NAMESPACES": NAMESPACE,
        f"{PREFIX}HEALTH_PORT": str(port),
    }


def point_to(server: Server, environment: dict[str, str]) -> None:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    Path(environment["KUBECONFIG"]).write_text(yaml.safe_dump(kubeconfig))


@asynccontextmanager
async def operator(environment: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """The operator's process; it is killed if it outlives the block."""
    command = "from batchinference_operator.runtime.main import main; main()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(environment: dict[str, str]) -> str:
    """The last words of an operator that ends by itself, badly."""
    async with operator(environment) as process:
        _, words = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    return words.decode()


async def served(server: Server, wanted: Callable[[Request], bool], times: int = 1) -> None:
    """Wait until the operator has asked for something so many times."""
    async with asyncio.timeout(30):
        while sum(map(wanted, server.requests)) < times:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)


async def asked(environment: dict[str, str], path: str) -> tuple[int, str]:
    """The operator's own answer, and its status."""
    url = f"http://127.0.0.1:{environment[PREFIX + 'HEALTH_PORT']}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def answered(environment: dict[str, str], path: str, status: int) -> str:
    """The operator's own answer, as soon as it has this status."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                found, text = await asked(environment, path)
                if found == status:
                    return text
            await asyncio.sleep(0.05)


async def unhealthy(environment: dict[str, str]) -> bool:
    """Whether the operator says so itself."""
    with contextlib.suppress(aiohttp.ClientConnectionError):
        return (await asked(environment, "/healthz"))[0] == 503
    return False


def samples(text: str) -> dict[tuple[str, frozenset[str]], float]:
    """Samples of a scrape by name and label values."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_prometheus_finds_what_it_has_done(serve: Serve, settings: dict[str, str]) -> None:
    server = await serve(api_server())
    point_to(server, settings)
    async with operator(settings):
        await served(server, lambda asked: asked.path.endswith("/events"))
        await answered(settings, "/readyz", 200)
        _, text = await asked(settings, "/metrics")
    found = samples(text)

    def value(name: str, *labels: str) -> float | None:
        return found.get((f"batchinference_{name}", frozenset(labels)))

    assert value("api_requests_total", "create", "rayjobs", "201") == 1
    assert value("api_requests_total", "patch", "batchinferences/status", "200") == 1
    assert value("api_requests_total", "watch", "pods", "200") == 1, "kopf's requests count too"
    assert value("status_writes_total", "written") == 1
    assert value("jobs", "Starting") == 1
    assert value("queue_depth") == 0
    assert (value("reconcile_seconds_count") or 0) >= 1
    assert found["process_resident_memory_bytes", frozenset()] > 0


async def test_it_is_ready_once_all_first_lists_are_complete(
    serve: Serve, settings: dict[str, str]
) -> None:
    answer, held = api_server(), asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods"):
            await held.wait()
        return await answer(request)

    point_to(await serve(late), settings)
    async with operator(settings):
        words = await answered(settings, "/readyz", 503)
        while words.count("\n") > 1:
            words = await answered(settings, "/readyz", 503)
        assert words.rstrip().endswith(f"/api/v1/namespaces/{NAMESPACE}/pods")
        assert (await asked(settings, "/healthz"))[0] == 200
        held.set()
        await answered(settings, "/readyz", 200)


async def test_it_is_unhealthy_while_a_watch_is_dead_and_healthy_when_it_lives_again(
    serve: Serve, settings: dict[str, str]
) -> None:
    answer, dead = api_server(), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        if dead.is_set() and "watch" in request.query and request.path.endswith("/rayjobs"):
            raise ConnectionResetError
        return await answer(request)

    settings[f"{PREFIX}WATCH_SECONDS"] = "1"
    point_to(await serve(silent), settings)
    async with operator(settings):
        await answered(settings, "/readyz", 200)
        dead.set()
        assert "/rayjobs" in await answered(settings, "/healthz", 503)
        assert "/pods" not in (await asked(settings, "/healthz"))[1]
        dead.clear()
        await answered(settings, "/healthz", 200)


async def test_kubernetes_starts_it_anew_when_its_credentials_are_refused(
    serve: Serve, settings: dict[str, str]
) -> None:
    """It is unhealthy until it ends by itself, which kopf decides."""
    answer = api_server()

    async def refused(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        return await answer(request)

    settings[f"{PREFIX}WATCH_SECONDS"] = "1"
    server = await serve(refused)
    point_to(server, settings)
    async with operator(settings) as process, asyncio.timeout(60):
        while process.returncode is None and not await unhealthy(settings):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # it is another process
        assert process.returncode in (None, 1)
    asked_to_watch = [asked for asked in server.requests if "watch" in asked.query]
    assert len(asked_to_watch) < 20, "the same credentials are not tried again and again"


async def test_it_starts_jobs_and_ends_at_once_when_it_is_told_to(
    serve: Serve, settings: dict[str, str]
) -> None:
    server = await serve(api_server())
    point_to(server, settings)
    async with operator(settings) as process:
        await served(server, lambda asked: asked.path.endswith("/job/status"))
        assert (await asked(settings, "/healthz"))[0] == 200
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    assert time.monotonic() - told < 4, "Kubernetes waits for it, and so does the next operator"
    created = [asked.body["kind"] for asked in server.requests if asked.method == "POST"]
    assert created == ["ConfigMap", "RayJob", "Secret", "Event"]
    for line in log.decode().splitlines():
        assert json.loads(line)["level"] == "info", line


async def test_it_ends_without_a_word_while_watches_tell_of_much(
    serve: Serve, settings: dict[str, str]
) -> None:
    answer = api_server()

    async def busy(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/batchinferences") and "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        if not (request.path.endswith("/pods") and "watch" in request.query):
            return await answer(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for number in itertools.count(2):
                await response.write(json.dumps(news(number)).encode() + b"\n")
        return response

    point_to(await serve(busy), settings)
    async with operator(settings) as process:
        await answered(settings, "/readyz", 200)
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    assert [line for line in log.decode().splitlines() if json.loads(line)["level"] != "info"] == []


def news(number: int) -> dict[str, Any]:
    """One of very many pods, of a job that is gone."""
    labels = {NAME_LABEL: "gone"}
    metadata = {"uid": f"uid-{number}", "resourceVersion": str(number), "labels": labels}
    return {"type": "ADDED", "object": merged(pod_body(f"job-1-{number}"), {"metadata": metadata})}


async def test_it_asks_the_api_server_for_its_own_objects_only(
    serve: Serve, settings: dict[str, str]
) -> None:
    server = await serve(api_server())
    point_to(server, settings)
    async with operator(settings):
        await served(server, lambda asked: "watch" in asked.query, times=3)
    selectors = {
        asked.path.rsplit("/", 1)[-1]: asked.query.get("labelSelector")
        for asked in server.requests
        if "watch" in asked.query
    }
    assert selectors == {"batchinferences": None, "rayjobs": NAME_LABEL, "pods": NAME_LABEL}


@pytest.mark.parametrize("namespaces", [NAMESPACE, ""], ids=["one-namespace", "everywhere"])
async def test_without_kuberay_it_says_so_and_ends(
    serve: Serve, settings: dict[str, str], namespaces: str
) -> None:
    point_to(await serve(api_server("rayjobs")), settings)
    words = await said({**settings, f"{PREFIX}NAMESPACES": namespaces})
    assert "rayjobs.ray.io" in words
    assert "install KubeRay" in words
    assert "Traceback" not in words


async def test_bad_defaults_end_it_with_field_and_value(
    settings: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "defaults.yaml").write_text("imagePullPolicy: Sometimes\n")
    words = await said(settings)
    assert "imagePullPolicy" in words
    assert "Sometimes" in words
    assert "Traceback" not in words


async def test_a_missing_key_ends_it_with_the_files_name(settings: dict[str, str]) -> None:
    words = await said({**settings, f"{PREFIX}TOKEN_KEY_FILE": "/nowhere/key"})
    assert "/nowhere/key" in words
    assert "Traceback" not in words
