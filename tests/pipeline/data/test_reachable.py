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
    connect = socket.create_connection

    def fake(host: tuple[str, int], timeout: float) -> socket.socket:
        tried.append(host)
        if host[0] not in {"127.0.0.1", "localhost"}:
            raise socket.gaierror(-2, "Name or service not known")
        return connect(host, timeout)

    for name in (*PROXIES, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(reachable.socket, "create_connection", fake)
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
    place = Location(address, Storage.model_validate(storage))
    assert list(unreachable({"a": place, "b": place})) == ["a"], "each service is reported once"
    assert looked_up == [expected]


def test_the_proxy_is_tried_in_place_of_the_store(
    looked_up: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert unreachable({"a": Location("s3://pets/cats/")})
    assert looked_up == [("proxy", 3128)]


def test_stores_that_answer_and_other_paths_are_no_problem(port: int) -> None:
    storage = Storage(endpoint=f"http://127.0.0.1:{port}")
    places = {
        "a": Location("s3://pets/", storage),
        "b": Location("./pets"),
        "c": Location("az://p"),
    }
    assert unreachable(places) == {}


def test_a_name_that_is_looked_up_for_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachable, "SECONDS", 0.05)
    ended = threading.Event()
    monkeypatch.setattr(reachable.socket, "create_connection", lambda *_: ended.wait())
    assert unreachable({"a": Location("s3://pets/")})
    ended.set()


def test_validate_reports_stores_that_do_not_answer(messages: Messages) -> None:
    read = {"paths": ["s3://pets/cats.csv"], "format": "csv"}
    given = job_document("pets", "in", "s3://pets/out", read=read)
    (problem,) = preflight.preflight(parse(given).spec)
    messages.check(str(problem))
