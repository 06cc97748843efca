"""The credentials of the operator, and its sessions with the API server."""

from __future__ import annotations

import secrets
from itertools import count
from pathlib import Path

import kopf
import pytest

from batchinference_operator.kube.api_session import find_credentials, open_session
from batchinference_operator.kube.http import send
from batchinference_operator.main import operate
from batchinference_operator.preflight import NotReady
from batchinference_operator.settings import OperatorSettings
from support.servers.scripted_http import Serve, answering

SETTINGS = kopf.OperatorSettings()


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the token of the pod each time it is read."""
    numbers = count()

    def login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server="https://kubernetes.default.svc", token=f"{next(numbers)}"
        )

    monkeypatch.setattr(kopf, "login_with_service_account", login)


@pytest.mark.parametrize(("seconds", "sent"), [(-1.0, ["0", "1"]), (60.0, ["0", "0"])])
async def test_requests_have_the_current_token(
    serve: Serve, seconds: float, sent: list[str]
) -> None:
    server = await serve(answering(200, {}))
    session = open_session(kopf.ConnectionInfo(server=server.url), token_seconds=seconds)
    async with session.aiohttp_session:
        for _ in sent:
            assert (await send(session, "GET", "/api"))[:2] == (200, {})
    tokens = [request.headers["Authorization"] for request in server.requests]
    assert tokens == [f"Bearer {token}" for token in sent]


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("10.96.0.1", "https://10.96.0.1:443"),
        ("fd00::1", "https://[fd00::1]:443"),
        ("", "https://kubernetes.default.svc"),
    ],
)
def test_address_of_the_api_server_needs_no_dns(
    monkeypatch: pytest.MonkeyPatch, host: str, server: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    info = find_credentials(settings=SETTINGS)
    assert info is not None
    assert info.server == server


async def test_server_of_a_kubeconfig_may_end_with_a_slash(serve: Serve) -> None:
    server = await serve(answering(200, {}))
    session = open_session(kopf.ConnectionInfo(server=f"{server.url}/"))
    async with session.aiohttp_session:
        await send(session, "GET", "/api")
    assert [request.path for request in server.requests] == ["/api"]


@pytest.mark.parametrize("content", [None, "current-context: gone"])
async def test_kubeconfig_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    key, config = tmp_path / "key", tmp_path / "config"
    key.write_text(secrets.token_hex(32))
    if content:
        config.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: None)
    with pytest.raises(NotReady, match="KUBECONFIG"):
        await operate(OperatorSettings(token_key_file=key))
