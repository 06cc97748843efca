"""The pages over HTTP: only for who knows the token, and with headers that protect them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from batchinference.ui.site import REPORT_POLICY, Answer
from support.browser import served_ui


class Recorder:
    """Answers every request, and remembers them."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def answer(self, path: str) -> Answer:
        self.requests.append(path)
        if path == "fails":
            raise RuntimeError("no page")
        return Answer(b"page", policy=REPORT_POLICY)


@pytest.fixture
def site() -> Recorder:
    return Recorder()


@pytest.fixture
def port(site: Recorder) -> Iterator[int]:
    with served_ui(site) as address:
        assert re.fullmatch(r"http://127.0.0.1:\d+/token/", address)
        yield int(address.split(":")[2].split("/")[0])


def get(port: int, path: str, method: str = "GET") -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    return connection.getresponse()


def test_page_is_served_below_the_token(port: int, site: Recorder) -> None:
    answer = get(port, "/token/jobs/a%20b/report?x=1")
    assert (answer.status, answer.read()) == (200, b"page")
    assert site.requests == ["jobs/a b/report"]


@pytest.mark.parametrize("path", ["/", "/token", "/other/jobs/0", "/TOKEN/", "*"])
def test_request_without_the_token_is_refused(port: int, site: Recorder, path: str) -> None:
    assert get(port, path).status == 404
    assert get(port, "/token/", "POST").status == 501
    assert site.requests == []


def test_page_is_protected_by_headers(port: int) -> None:
    headers = get(port, "/token/").headers
    assert headers["Content-Security-Policy"] == REPORT_POLICY
    assert headers["Referrer-Policy"] == "no-referrer"  # the address contains the token
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_defect_gives_an_error_and_the_server_keeps_running(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert get(port, "/token/fails").status == 500
    assert "no page" in capfd.readouterr().err
    assert get(port, "/token/").status == 200
