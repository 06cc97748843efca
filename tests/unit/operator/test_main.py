"""The operator as a process, at an API server that a test plays over real HTTP."""

from __future__ import annotations

import asyncio
import json
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

from batchinference.rendering import NAME_LABEL
from support.http_servers import Request, Serve, Server
from support.operator_objects import NAMESPACE, job_body

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
            await asyncio.sleep(60)
            return response
        if request.method == "GET":
            items = [job_body()] if plural == "batchinferences" else []
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        return web.json_response({}, status=201 if request.method == "POST" else 200)

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


async def test_it_starts_jobs_and_ends_at_once_when_it_is_told_to(
    serve: Serve, settings: dict[str, str]
) -> None:
    server = await serve(api_server())
    point_to(server, settings)
    async with operator(settings) as process:
        await served(server, lambda asked: asked.path.endswith("/job/status"))
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{settings[PREFIX + 'HEALTH_PORT']}/healthz") as health,
        ):
            assert health.status == 200
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    assert time.monotonic() - told < 4, "Kubernetes waits for it, and so does the next operator"
    created = [asked.body["kind"] for asked in server.requests if asked.method == "POST"]
    assert created == ["ConfigMap", "RayJob"]
    for line in log.decode().splitlines():
        assert json.loads(line)["severity"] == "info", line


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
