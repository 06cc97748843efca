"""Files at an address: on a local disk, and on simulated Google Cloud Storage and Azure. Which
credentials and which proxy of S3 a process uses."""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from batchinference.pipeline.error_classification import is_storage_error
from batchinference.pipeline.errors import BadInput, JobFailure, mask_secrets
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.storage import location
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import _s3, object_store, proxy_of
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from plugins.messages import Messages
from support.servers.clouds import ACCOUNT_KEY, Cloud, served
from support.servers.loopback import handled_by

SIGNATURE = "signature-of-the-tests"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only the credentials of the test."""
    for name in ("ACCOUNT", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)


@pytest.fixture(scope="session")
def clouds() -> Iterator[dict[str, Cloud]]:
    with served("google") as google, served("azure") as azure:
        yield {"gs": google, "az": azure}


@pytest.fixture(params=["disk", "gs", "az"])
def root(request: pytest.FixtureRequest, clouds: dict[str, Cloud], tmp_path: Path) -> Location:
    """Return an empty directory, or a unique path in a bucket."""
    if request.param == "disk":
        return Location(str(tmp_path))
    endpoint = clouds[request.param].endpoint
    storage = Storage(endpoint=endpoint, anonymous=request.param == "gs")
    return Location(f"{request.param}://bucket/{uuid.uuid4().hex}", storage)


@pytest.fixture
def cloud(root: Location, clouds: dict[str, Cloud]) -> Cloud:
    return clouds[root.scheme]


only_clouds = pytest.mark.parametrize("root", ["gs", "az"], indirect=True)


def test_written_content_can_be_read(root: Location, clouds: dict[str, Cloud]) -> None:
    """Also if the name is that of a compressed file."""
    contents = (b"", b"content", memoryview(gzip.compress(b"content")), bytes(range(256)) * 40_000)
    for name in ("deep/a b#é.bin", "a.gz", "a.json.gz", "a.bz2", "a.zst"):
        target = root / name
        for content in contents:
            target.write(content)
            path = target.path
            stored = Path(path).read_bytes() if root.local else clouds[root.scheme].objects[path]
            assert stored == target.read() == bytes(content)
            assert target.exists()


def test_missing_file_raises_and_can_be_deleted(root: Location) -> None:
    for _ in range(2):
        assert not (root / "none").exists()
        with pytest.raises(FileNotFoundError):
            (root / "none").read()
        (root / "none").delete()
        (root / "none").write(b"x")
        (root / "none").delete()
    with pytest.raises(BadInput, match=f"read.paths.0.: '{root.uri}/none' does not exist"):
        snapshot_input([f"{root.uri}/none"], [], root.storage)


def listed(position: Location, *, recursive: bool = False) -> list[str]:
    return sorted(position.relative(info.path) for info in position.files(recursive=recursive))


def test_files_are_listed_and_deleted(root: Location) -> None:
    for name in ("a", "sub/b", "sub/deep/c"):
        (root / name).write(b"x")
    assert (listed(root), listed(root / "sub"), listed(root / "none")) == (["a"], ["b"], [])
    assert listed(root, recursive=True) == ["a", "sub/b", "sub/deep/c"]
    assert [root.at(info.path).read() for info in root.files(recursive=True)] == [b"x"] * 3
    for _ in range(2):
        (root / "sub").delete_directory()
        assert listed(root, recursive=True) == ["a"]


def test_moved_file_is_in_its_new_place_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a store that cannot rename. The simulated servers copy no objects."""
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    monkeypatch.setattr(location, "object_store", lambda *_: store)
    (tmp_path / "bucket").mkdir()
    for position in (Location(str(tmp_path)), Location("s3://bucket")):
        source, target = position / "x", position / "y"
        source.write(b"new")
        target.write(b"old")
        source.move(target)
        assert (target.read(), source.exists()) == (b"new", False)


def test_input_is_found_by_directory_and_glob(root: Location) -> None:
    for name in ("a.txt", "b.txt"):
        (root / name).write(b"text")
    for pattern in ("", "*.txt"):
        frozen = snapshot_input([f"{root.uri}/{pattern}"], ["txt"], root.storage)
        assert frozen.uris == [(root / name).uri for name in ("a.txt", "b.txt")], pattern
        assert [frozen.address(file).read() for file in frozen.files()] == [b"text"] * 2


@only_clouds
def test_transient_error_is_retried(root: Location, cloud: Cloud) -> None:
    (root / "a").write(b"content")
    cloud.fail(1)
    assert (root / "a").read() == b"content"
    cloud.fail(1)
    (root / "b").write(b"content")
    assert cloud.objects[(root / "b").path] == b"content"


@only_clouds
def test_file_is_fetched_with_few_requests(root: Location, cloud: Cloud) -> None:
    cloud.put((root / "a").path, bytes(3 << 20))
    cloud.requests()
    assert len((root / "a").read()) == 3 << 20
    assert cloud.requests() <= 3


def test_address_can_be_pickled(root: Location) -> None:
    (root / "a").write(b"content")
    unpickled = pickle.loads(pickle.dumps(root / "a"))
    assert unpickled == root / "a"
    assert unpickled.read() == b"content"
    assert len(pickle.dumps(root)) < 500


def test_credentials_are_sent_unless_access_is_anonymous(clouds: dict[str, Cloud]) -> None:
    cloud, storage = clouds["az"], Storage(endpoint=clouds["az"].endpoint)
    address = Location("az://bucket/credentials", storage)
    address.write(b"x")
    assert True in cloud.authorized
    anonymous = replace(address, storage=storage.model_copy(update={"anonymous": True}))
    assert anonymous.read() == b"x"
    assert cloud.authorized == [False, True]


class TestAzureAccount:
    def test_environment_names_the_account(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "lake")
        assert object_store("az", "bucket", FROM_ENVIRONMENT).type_name == "abfs"

    @pytest.mark.parametrize(
        "endpoint",
        ["https://lake.blob.core.windows.net", "https://lake.blob.core.windows.net/",
         "https://lake.blob.core.chinacloudapi.cn", "http://127.0.0.1:10000/lake"],
    )  # fmt: skip
    @pytest.mark.parametrize("anonymous", [False, True])
    def test_endpoint_names_the_account(self, endpoint: str, anonymous: bool) -> None:
        storage = Storage(endpoint=endpoint, anonymous=anonymous)
        assert object_store("az", "bucket", storage).type_name == "abfs"

    def test_missing_account_is_rejected(self, messages: Messages) -> None:
        with messages.raises(BadInput):
            snapshot_input(["az://bucket/in"], [])

    def test_token_is_not_sent_without_tls(
        self, monkeypatch: pytest.MonkeyPatch, messages: Messages
    ) -> None:
        monkeypatch.delenv("AZURE_STORAGE_KEY")
        storage = Storage(endpoint="http://127.0.0.1:1/lake")
        with messages.raises(BadInput):
            snapshot_input(["az://bucket/in"], [], storage)

    def test_error_messages_hide_the_signature(
        self, monkeypatch: pytest.MonkeyPatch, clouds: dict[str, Cloud]
    ) -> None:
        monkeypatch.setattr("time.sleep", lambda _: None)
        monkeypatch.delenv("AZURE_STORAGE_KEY")
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"?sv=2026&sig={SIGNATURE}&se=2099")
        address = Location("az://bucket/a", Storage(endpoint=clouds["az"].endpoint))
        address.write(b"x")
        clouds["az"].fail(20)
        try:
            with pytest.raises(OSError, match="Azure Error") as raised:
                address.read()
        finally:
            clouds["az"].fail(0)
        assert SIGNATURE in str(raised.value), "the library no longer shows it: the test is void"
        assert is_storage_error(raised.value)
        assert SIGNATURE not in JobFailure(f"cannot be read: {raised.value}").message


def test_credentials_in_addresses_are_hidden() -> None:
    shown = {
        "at https://u:p@host/x?a=1": "at https://***@host/x?a=1",
        "'http://h/b?se=1&sig=abc%2F=&sv=2'": "'http://h/b?se=1&sig=***&sv=2'",
        "?sig=abc' and more": "?sig=***' and more",
    }
    unchanged = ("s3://bucket/a@b and mail@host", "nothing secret")
    assert {text: mask_secrets(text) for text in shown} == shown
    assert tuple(map(mask_secrets, unchanged)) == unchanged


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
