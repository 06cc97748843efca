"""A manifest reads only public addresses, allowed prefixes and its own directory, within limits."""

from __future__ import annotations

import gzip
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.storage import allowed_addresses, retry, url_fetcher
from batchinference.pipeline.storage.allowed_addresses import Allowed, Forbidden, is_public
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.url_fetcher import Fetcher
from plugins.messages import Messages
from support.documents.refusals import short
from support.inputs.read_files import read_files
from support.servers.loopback import handled_by

SENT: list[dict[str, str]] = []
"""The headers of all requests to redirecting servers."""
BOMB = gzip.compress(bytes(8 << 20))
GZIP = gzip.compress(b"whole")
ENCODED = {"/whole": "gzip", "/cut": "gzip", "/strange": "br"}
"""The encodings of answers without Content-Length. The gzip stream of `/cut` is truncated."""


@contextmanager
def redirecting_server(target: str = "") -> Iterator[str]:
    """Serve `/secret`, `/bomb`, `/large`, `/loop` and ENCODED; redirect others to the target."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            SENT.append(dict(self.headers))
            content = {"/secret": b"credentials", "/bomb": BOMB, "/large": bytes(2 << 20)}.get(
                self.path
            )
            redirects = content is None and self.path not in ENCODED
            self.send_response(302 if redirects else 200)
            if redirects:
                self.send_header("Location", self.path if self.path == "/loop" else target)
            if self.path == "/bomb":
                self.send_header("Content-Encoding", "gzip")
            if encoding := ENCODED.get(self.path):
                self.send_header("Content-Encoding", encoding)
                content = GZIP[:-1] if self.path == "/cut" else GZIP
            else:
                self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

    with handled_by(Handler) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def slow_server() -> Iterator[tuple[str, list[str]]]:
    """Serve an answer that arrives byte by byte. Yield the address and the requests."""
    pause, requests = threading.Event(), list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
                for _ in range(100):
                    self.wfile.write(b".")
                    pause.wait(0.01)

    with handled_by(Handler) as port:
        yield f"http://127.0.0.1:{port}", requests


def errors(directory: Path, *uris: str, **options: object) -> list[str]:
    """Return the error of each row of a manifest; empty for rows that were fetched."""
    pq.write_table(pa.table({"uri": list(uris)}), directory / "list.parquet")
    outcome = read_files("manifest", directory / "list.parquet", **options)
    return [outcome.bad.get((0, row), "") for row in range(len(uris))]


PRIVATE = [
    *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0"),
    *("fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "2002:7f00:1::", "64:ff9b:1::a9fe:a9fe", "::7f00:1", "fec0::1"),
    *("::ffff:0:7f00:1", "168.63.129.16", "192.0.0.192", "3fff::1"),
]
PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


def test_private_networks_are_not_public() -> None:
    assert [address for address in PRIVATE if is_public(address)] == []
    assert [address for address in PUBLIC if not is_public(address)] == []


def test_private_server_is_refused_under_any_name(tmp_path: Path, messages: Messages) -> None:
    with redirecting_server() as url:
        port = url.rpartition(":")[2]
        names = ["127.0.0.1", "localhost", "127.1", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]"]
        for error in errors(tmp_path, *(f"http://{name}:{port}/secret" for name in names)):
            messages.check(error)


def test_allowed_prefix_is_fetched(tmp_path: Path) -> None:
    with redirecting_server() as url:
        assert errors(tmp_path, f"{url}/secret", allow=[url]) == [""]
        assert errors(tmp_path, f"{url}/secret", allow=[f"{url}/secret"]) == [""]
        for other in (f"{url}/sec", url[:-1], url.replace("http:", "https:"), "http://127.0.0.1"):
            (error,) = errors(tmp_path, f"{url}/secret", allow=[other])
            assert "private network" in error, other


def test_address_outside_of_an_allowed_prefix_is_refused(tmp_path: Path) -> None:
    with redirecting_server() as url:
        allow = [f"{url}/photos/", "http://intranet.example/photos/"]
        outside = [
            *(
                f"{url}/photos/{dots}/secret"
                for dots in ("..", "%2e%2e", "..%2f..", "%252e%252e", "..;", "..;x=1")
            ),
            *(f"{url}\\@intranet.example/photos/", f"{url}\\.intranet.example/photos/x"),
            url.replace("://", "://intranet.example@") + "/photos/x",
        ]
        for uri, error in zip(outside, errors(tmp_path, *outside, allow=allow), strict=True):
            assert "private network" in error or "cannot be fetched" in error, uri


ELSEWHERE = (
    *("..", "%2e%2e", "..%2f..", "%252e%252e", "%25252e.", "..;", "..;x=1", "..,", "..:"),
    *("..%00", "..%20", "%20..", "..%09", "..%0a", "a%00", "%2e%2e%5c", "..%c0%af", "%c0%ae%c0%ae"),
    *("%e0%80%ae%e0%80%ae", "%f0%80%80%ae.", "%ef%bc%8e%ef%bc%8e", "\uff0e\uff0e", "\u2025"),
    *("%25c0%25ae", "a%ef%bc%8f..", "a\x01", "%" + "25" * 40_000 + "2e.", "%2525252525252e."),
)


@pytest.mark.parametrize("dots", ELSEWHERE, ids=short)
def test_path_that_a_server_may_read_as_another_is_not_below_a_prefix(dots: str) -> None:
    """With quadratic time for repeated escapes, the test would far exceed its timeout."""
    allowed = Allowed(["http://host/photos/"])
    assert not allowed.has_url(f"http://host/photos/{dots}/x")
    manifest = Location("s3://bucket/list.txt")
    with pytest.raises(Forbidden):
        allowed.stored(Location(f"s3://bucket/{dots}/x"), manifest)


@pytest.mark.parametrize(
    "name",
    ["a.txt", ".a", "a..b", "a%20b", "caf%c3%a9", "caf%e9", "\u00e9.png", "a%252fb", "a;b", ""],
)
def test_path_below_a_prefix_is_allowed(name: str) -> None:
    assert Allowed(["http://host/photos/"]).has_url(f"http://host/photos/{name}")
    address = Location(f"s3://bucket/{name}")
    assert Allowed().stored(address, Location("s3://bucket/list.txt")) == address


def test_local_path_is_resolved_and_not_unescaped(tmp_path: Path) -> None:
    """Kubernetes names the content of volumes `..data`."""
    address = Location(str(tmp_path / "..data/a%2e.txt"))
    assert Allowed().stored(address, Location(str(tmp_path / "list.txt"))) == address
    with pytest.raises(Forbidden):
        Allowed().stored(Location(str(tmp_path / "../x")), Location(str(tmp_path / "list.txt")))


def test_private_address_is_refused_before_a_connection(tmp_path: Path, messages: Messages) -> None:
    (error,) = errors(tmp_path, "http://127.0.0.1:1/x")
    messages.check(error)


def test_proxy_is_asked_for_public_addresses_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirecting_server() as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        for uri in ("http://169.254.169.254/secret", "http://10.0.0.1/secret"):
            (error,) = errors(tmp_path, uri)
            assert "private network" in error


def test_netrc_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login me password s3cret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with redirecting_server() as url:
        assert errors(tmp_path, f"{url}/secret", allow=[url]) == [""]
        assert SENT[-1].get("Authorization") is None
        own = url.replace("://", "://me:own@")
        monkeypatch.setattr(allowed_addresses, "is_public", lambda _: True)
        assert errors(tmp_path, f"{own}/secret") == [""]
        assert SENT[-1]["Authorization"].startswith("Basic ")


def test_redirect_to_a_private_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    with redirecting_server() as private, redirecting_server(f"{private}/secret") as public:
        uri = f"{public}/there"
        (error,) = errors(tmp_path, uri, allow=[public])
        assert "private network" in error
        assert errors(tmp_path, uri, allow=[public, private]) == [""]
        (error,) = errors(tmp_path, f"{public}/loop", allow=[public])
        assert f"more than {url_fetcher.MAX_REDIRECTS} redirects" in error
    with redirecting_server("file:///etc/hostname") as public:
        (error,) = errors(tmp_path, f"{public}/there", allow=[public])
        messages.check(error)


def test_content_is_limited_after_decompression(tmp_path: Path, messages: Messages) -> None:
    with redirecting_server() as url:
        uris = [f"{url}/secret", f"{url}/bomb", f"{url}/large"]
        small, *large = errors(tmp_path, *uris, allow=[url], maxBytes=1 << 20)
        assert small == ""
        for error in large:
            messages.check(error)
    (tmp_path / "large").write_bytes(bytes(11))
    assert errors(tmp_path, "large", maxBytes=11) == [""]
    (error,) = errors(tmp_path, "large", maxBytes=10)
    messages.check(error)


def test_slow_answer_ends_at_the_deadline(messages: Messages) -> None:
    with slow_server() as (url, requests):
        fetcher = Fetcher(Allowed([url]), 1 << 20, max_seconds=0.2)
        with messages.raises(url_fetcher.TransientFetchError):
            fetcher.fetch_url(f"{url}/x")
    assert len(requests) == 1, "there is no retry"


@pytest.mark.usefixtures("no_backoff")
def test_truncated_gzip_stream_is_an_error(tmp_path: Path, messages: Messages) -> None:
    with redirecting_server() as url:
        uris = [f"{url}{path}" for path in ENCODED]
        full, cut, strange = errors(tmp_path, *uris, allow=[url], onUnreachable="error")
    assert full == ""
    messages.check(cut)
    messages.check(strange)


def test_long_waits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def overloaded(_: Fetcher, url: str) -> bytes:
        asked.append(url)
        raise url_fetcher.TransientFetchError("busy", retry.LONGEST_PAUSE)

    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(Fetcher, "_get", overloaded)
    with pytest.raises(url_fetcher.TransientFetchError):
        Fetcher(Allowed(), 1).fetch_url("http://host/")
    assert len(asked) == 1, "another try would begin after the longest pause"


def test_local_manifest_reads_its_own_directory_only(tmp_path: Path, messages: Messages) -> None:
    own = tmp_path / "own"
    (own / "deep").mkdir(parents=True)
    for name in ("own/x", "own/deep/y", "outside", "own-too"):
        (tmp_path / name).write_text("a")
    (own / "link").symlink_to(tmp_path / "outside")
    inside = ["x", "deep/y", "deep/../x", str(own / "x"), f"file://{own}/x"]
    assert errors(own, *inside) == [""] * len(inside)
    outside = ["../outside", "link", "/etc/passwd", f"file://{tmp_path}/outside", "../own-too"]
    for error in errors(own, *outside):
        messages.check(error)
    assert errors(own, "../outside", "link", allow=[str(tmp_path)]) == ["", ""]


def test_file_that_is_replaced_by_a_link_after_the_check_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    own, read = tmp_path / "own", Location.read
    own.mkdir()
    (tmp_path / "secret").write_text("a")
    (own / "x").write_text("b")

    def replaced(location: Location, limit: int | None = None) -> bytes:
        if location.path == str(own / "x"):
            (own / "x").unlink()
            (own / "x").symlink_to(tmp_path / "secret")
        return read(location, limit)

    monkeypatch.setattr(Location, "read", replaced)
    (error,) = errors(own, "x")
    messages.check(error)


@pytest.mark.parametrize(
    ("uri", "prefixes", "ok"),
    [
        ("s3://own/other/x", [], True),
        ("s3://another/x", [], False),
        ("gs://own/x", [], False),
        ("/etc/passwd", [], False),
        ("s3://another/x", ["s3://another/"], True),
        ("s3://another/x/y", ["s3://another/x"], True),
        ("s3://another/xy", ["s3://another/x"], False),
        ("s3://another/x/../y", ["s3://another/x"], False),
        ("s3://own/../another/x", [], False),
        ("s3://own/lists/../../another/x", [], False),
        ("/etc/passwd", ["s3://etc/"], False),
    ],
)
def test_manifest_in_a_bucket_reads_its_own_bucket_only(
    uri: str, prefixes: list[str], ok: bool, messages: Messages
) -> None:
    manifest = Location("s3://own/lists/a.parquet")
    policy = pickle.loads(pickle.dumps(Allowed(prefixes)))
    if ok:
        policy.stored(Location(uri), manifest)
    else:
        with messages.raises(Forbidden):
            policy.stored(Location(uri), manifest)
