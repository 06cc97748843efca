"""Which credentials and which proxy of S3 a process uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from batchinference.pipeline.storage.object_stores import _s3, object_store, proxy_of
from batchinference.spec.storage import Storage
from support.servers.loopback import handled_by

PROGRAM = """
from batchinference.pipeline.storage.object_stores import object_store
from batchinference.spec.storage import Storage
object_store("s3", "bucket", Storage())
"""
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@contextmanager
def metadata_service(requests: list[str]) -> Iterator[str]:
    """Run an instance metadata service or a proxy that knows nothing. Yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        do_PUT = do_HEAD = do_GET  # noqa: N815 - the names of the protocol

    with handled_by(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def requests_to_metadata_service(home: Path, keys: dict[str, str]) -> list[str]:
    """Return the requests of a process that opens an object store with these keys."""
    requests: list[str] = []
    with metadata_service(requests) as address:
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment = others | keys | {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": address,
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "HOME": str(home),
        }  # fmt: skip
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=120)
    return requests


def test_keys_in_the_environment_need_no_metadata_service(tmp_path: Path) -> None:
    """Outside AWS, each process would wait for 6 seconds for the service."""
    assert requests_to_metadata_service(tmp_path, KEYS) == []
    assert requests_to_metadata_service(tmp_path, {}) != []


def test_replaced_keys_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    stores: list[pafs.FileSystem] = []
    for key in ("first", "second", "second"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        stores.append(object_store("s3", "bucket", Storage()))
    assert stores[0] != stores[1]
    assert stores[1] is stores[2]


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_objects_are_read_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, no_proxies: None
) -> None:
    """The name of the store cannot be resolved, so only the proxy answers."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    requests: list[str] = []
    with metadata_service(requests) as address:
        monkeypatch.setenv("HTTP_PROXY", address)
        store = _s3("bucket", Storage(endpoint="http://store.invalid"))
        assert store.get_file_info("bucket/x").type == pafs.FileType.NotFound
    assert requests[0].startswith("http://store.invalid/bucket")


@pytest.mark.parametrize(
    ("variables", "endpoint", "proxy"),
    [
        ({}, None, None),
        ({"HTTPS_PROXY": "http://p:1"}, None, "http://p:1"),
        ({"https_proxy": "p.example:1"}, "https://s3.example", "http://p.example:1"),
        ({"HTTPS_PROXY": "user:pass@p:1"}, None, "http://user:pass@p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://minio.storage.svc:9000", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": ".svc"}, "http://minio.storage.svc:9000", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3:9000", None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "amazonaws.com"}, None, None),
    ],
)
def test_proxy_of_an_endpoint(
    monkeypatch: pytest.MonkeyPatch,
    no_proxies: None,
    variables: dict[str, str],
    endpoint: str | None,
    proxy: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(endpoint) == proxy
