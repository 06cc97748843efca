"""Object stores that do not answer are found before their libraries try for minutes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from batchinference.pipeline import preflight
from batchinference.pipeline.storage import reachable
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.reachable import unreachable
from batchinference.spec import parse
from batchinference.spec.storage import Storage
from plugins.messages import Messages
from support.jobs.on_ray import job_document

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the hosts to which connections were tried. All but those on this machine fail."""
    tried: list[tuple[str, int]] = []
    look_up = socket.getaddrinfo

    def fake(host: str, port: int, *arguments: Any, **options: Any) -> Any:
        if host not in {"127.0.0.1", "localhost"}:
            tried.append((host, port))
            raise socket.gaierror(-2, "Name or service not known")
        return look_up(host, port, *arguments, **options)

    for name in (*PROXIES, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(reachable.socket, "getaddrinfo", fake)
    return tried


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port of this machine that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "storage", "expected"),
    [
        ("s3://pets/cats/", {}, ("s3.amazonaws.com", 443)),
        ("s3://pets/cats/", {"region": "eu-west-1"}, ("s3.eu-west-1.amazonaws.com", 443)),
        ("s3://pets/", {"region": "us-gov-west-1"}, ("s3.us-gov-west-1.amazonaws.com", 443)),
        ("s3://pets/", {"region": "cn-north-1"}, ("s3.cn-north-1.amazonaws.com.cn", 443)),
        ("s3://pets/cats/", {"endpoint": "http://minio:9000"}, ("minio", 9000)),
        ("gs://pets/cats/", {}, ("storage.googleapis.com", 443)),
        ("az://pets/cats/", {"endpoint": "https://me.blob.core.windows.net"},
         ("me.blob.core.windows.net", 443)),
    ],
)  # fmt: skip
def test_service_of_a_store_is_tried(
    looked_up: list[tuple[str, int]],
    address: str,
    storage: dict[str, Any],
    expected: tuple[str, int],
) -> None:
    path = Location(address, Storage.model_validate(storage))
    assert list(unreachable({"a": path, "b": path})) == ["a"], "each service is reported once"
    assert looked_up == [expected]


@pytest.mark.parametrize(
    ("variables", "region"),
    [
        ({"ALL_PROXY": "socks5h://proxy"}, None),
        ({"all_proxy": "http://proxy:1"}, None),
        ({"HTTPS_PROXY": "socks5h://proxy:1080"}, None),
        ({"HTTPS_PROXY": "http://proxy"}, None),
        ({}, "us-iso-east-1"),
        ({}, "eusc-de-east-1"),
        ({}, "auto"),
    ],
)
def test_stores_of_which_the_host_is_not_sure_are_not_tried(
    looked_up: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    region: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert unreachable({"a": Location("s3://pets/", Storage(region=region))}) == {}
    assert looked_up == []


def test_the_proxy_is_that_of_the_library(
    looked_up: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", ".eu-west-1.amazonaws.com")
    assert unreachable({"a": Location("s3://pets/", Storage(region="eu-west-1"))})
    assert looked_up == [("proxy", 3128)]


def test_one_address_of_a_host_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    addresses = ["2001:db8::1", "192.0.2.1"]
    infos = [(0, 0, 0, "", (address, 443)) for address in addresses]

    def connect(address: tuple[str, int], _: float) -> Any:
        if address[0] == addresses[0]:
            ended.wait()
            raise TimeoutError
        return socket.socket()

    monkeypatch.setattr(reachable.socket, "create_connection", connect)
    monkeypatch.setattr(reachable.socket, "getaddrinfo", lambda *_, **__: infos)
    assert unreachable({"a": Location("s3://pets/")}) == {}
    ended.set()


def test_a_host_without_address_that_answers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    infos = [(0, 0, 0, "", (address, 443)) for address in ("2001:db8::1", "192.0.2.1")]
    monkeypatch.setattr(reachable.socket, "create_connection", refuse)
    monkeypatch.setattr(reachable.socket, "getaddrinfo", lambda *_, **__: infos)
    assert unreachable({"a": Location("s3://pets/")})


def test_stores_that_answer_and_other_paths_are_no_problem(port: int) -> None:
    storage = Storage(endpoint=f"http://127.0.0.1:{port}")
    locations = {
        "a": Location("s3://pets/", storage),
        "b": Location("./pets"),
        "c": Location("az://p"),
    }
    assert unreachable(locations) == {}


def test_name_that_is_looked_up_for_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def look_up(*_: object, **__: object) -> None:
        ended.wait()
        raise socket.gaierror

    monkeypatch.setattr(reachable.socket, "getaddrinfo", look_up)
    assert unreachable({"a": Location("s3://pets/")}, seconds=0.05)
    ended.set()


def test_validate_reports_stores_that_do_not_answer(messages: Messages) -> None:
    read = {"paths": ["s3://pets/cats.csv"], "format": "csv"}
    given = job_document("pets", "in", "s3://pets/out", read=read)
    (problem,) = preflight.preflight(parse(given).spec)
    messages.check(str(problem))
