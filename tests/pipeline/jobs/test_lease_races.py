"""Two drivers that write the lease of an output at the same moment, on a disk and in each store."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, PreconditionError

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import Lease, check_unchanged, guard_of, read_lease
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.start_over import Claim
from batchinference.pipeline.error_classification import is_transient
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage import conditional_put, location
from batchinference.pipeline.storage.conditional_put import put_object, update_object
from batchinference.pipeline.storage.location import Guard, Location
from batchinference.pipeline.storage.object_stores import obstore_bucket
from batchinference.spec.storage import Storage
from plugins.messages import Messages
from support.jobs.crash_points import Site
from support.outputs.builders import succeeded_report

pytestmark = pytest.mark.xdist_group("s3")  # its worker has a server already
KEY = "a" * 64
on_all_stores = pytest.mark.parametrize("site", ["posix", "s3", "gs", "az"], indirect=True)
on_stores = pytest.mark.parametrize("site", ["s3", "gs", "az"], indirect=True)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.fixture
def layout(site: Site, monkeypatch: pytest.MonkeyPatch) -> Layout:
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    output = Location(f"{site.uri}/out 50%~#é", Storage.model_validate(site.storage))
    state = output / "_batchinference"
    return Layout(KEY, output, state, state / "errors")


class Store:
    """A store of obstore that calls a function instead of its next put."""

    def __init__(self, store: Any, put: Callable[[Callable[[], None]], None]) -> None:
        self.get, self._put, self._instead = store.get, store.put, put

    def put(self, *arguments: Any, **named: Any) -> None:
        def put() -> None:
            self._put(*arguments, **named)

        self._instead(put)


@contextmanager
def next_write(
    monkeypatch: pytest.MonkeyPatch, instead: Callable[[Callable[[], None]], None]
) -> Iterator[None]:
    """Call a function once, with the write, instead of the write of the next lease: of its put, or
    of the rename on a disk."""
    called: list[bool] = []

    def once(write: Callable[[], None]) -> None:
        if called:
            write()
        else:
            called.append(True)
            instead(write)

    def patched(real: Callable[..., None]) -> Callable[..., None]:
        def call(source: str, target: str, **named: Any) -> None:
            write = partial(real, source, target, **named)
            once(write) if target == "job.json" else write()

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", patched(os.rename))
        patch.setattr(
            conditional_put,
            "obstore_bucket",
            lambda *given, **named: Store(obstore_bucket(*given, **named), once),
        )
        yield
    assert called


def leased(layout: Layout, before: Lease | None) -> Lease:
    lease = Lease.new(layout, 1, begun=False)
    lease.write_if_unchanged(layout, before)
    return lease


Beginning = Callable[[Layout, Lease | None], object]
BEGINNINGS: dict[str, Beginning] = {
    "claim": lambda layout, before: Claim(layout, before, overwrite=False).claim_and_clear(),
    "attempt": lambda layout, before: JobPass.begin(layout, before, Snapshot(KEY, "0" * 64)),
}


@on_all_stores
@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize("new", [True, False], ids=["new output", "unfinished output"])
def test_of_two_drivers_that_have_compared_the_lease_one_begins(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, begin: Beginning, new: bool
) -> None:
    """The second driver begins between the comparison and the write of the first."""
    before = None if new else leased(layout, None)
    outcomes: list[str] = []

    def try_to_begin() -> None:
        try:
            begin(layout, before)
            outcomes.append("begun")
        except (BadOutput, BlockingIOError):
            outcomes.append("refused")

    def second_driver(write: Callable[[], None]) -> None:
        try_to_begin()
        write()

    with next_write(monkeypatch, second_driver):
        try_to_begin()
    assert sorted(outcomes) == ["begun", "refused"]


@on_all_stores
@pytest.mark.parametrize("new", [True, False], ids=["new output", "unfinished output"])
def test_of_drivers_that_begin_concurrently_one_has_the_lease(layout: Layout, new: bool) -> None:
    before = None if new else leased(layout, None)
    all_ready, kept = threading.Barrier(4), []

    def begin() -> None:
        all_ready.wait()
        with suppress(BadOutput, BlockingIOError):
            kept.append(leased(layout, before))

    drivers = [threading.Thread(target=begin) for _ in range(4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert kept == [read_lease(layout)]


@on_all_stores
def test_delayed_driver_changes_nothing(layout: Layout, messages: Messages) -> None:
    before = leased(layout, None)
    later = JobPass.begin(layout, before, Snapshot(KEY, "0" * 64))
    later.lease.write_success_marker(layout)
    for begin in BEGINNINGS.values():
        with messages.raises(BadOutput):
            begin(layout, before)
    assert read_lease(layout) == later.lease
    assert later.lease.has_completed(layout)


def driver(layout: Layout, name: str, attempts: dict[str, JobPass]) -> Iterator[None]:
    """Begin a pass and complete it, in steps. Takes over whatever it finds."""
    before = read_lease(layout)
    yield
    claim = Claim(layout, before, overwrite=False, job=name).claim_and_clear()
    yield
    start = Snapshot(layout.key, "0" * 64)
    attempts[name] = JobPass.begin(layout, claim, start, name)
    yield
    attempts[name].mark_complete(start, succeeded_report(layout.output.uri))


def has_lease(job_pass: JobPass) -> bool:
    with suppress(BadOutput):
        job_pass.check_lease()
        return True
    return False


@pytest.mark.parametrize("site", ["posix"], indirect=True)
def test_one_driver_at_most_has_the_lease_in_every_order_of_two(layout: Layout) -> None:
    """All 35 orders of the steps of two drivers, of which `a` is the one that begins."""
    for order in sorted({("a", *rest) for rest in permutations("aaabbbb")}):
        layout.output.delete_directory()
        attempts: dict[str, JobPass] = {}
        drivers = {name: driver(layout, name, attempts) for name in "ab"}
        refused: set[str] = set()
        completed: set[str] = set()
        for name in order:
            if name not in refused:
                try:
                    next(drivers[name])
                except StopIteration:
                    completed.add(name)
                except BadOutput:
                    refused.add(name)
            owners = {name for name, job_pass in attempts.items() if has_lease(job_pass)}
            assert len(owners) <= 1, order
            assert not owners & refused, order
        assert completed, order
        last = read_lease(layout)
        assert last is not None
        assert last.has_completed(layout) == (last.job in completed), order


LOST: dict[str, Exception] = {
    "connection": GenericError("Generic S3 error: in 1ms, after 3 retries - HTTP error: reset"),
    "response that obstore asks for again": PreconditionError("412"),
}


@on_stores
@pytest.mark.parametrize("error", LOST.values(), ids=LOST)
@pytest.mark.parametrize("new", [True, False], ids=["new output", "unfinished output"])
def test_own_lease_is_recognized_after_a_lost_response(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, error: Exception, new: bool
) -> None:
    before = None if new else leased(layout, None)

    def lose(write: Callable[[], None]) -> None:
        write()
        raise error

    with next_write(monkeypatch, lose):
        after = leased(layout, before)
    assert read_lease(layout) == after


@on_stores
def test_denied_write_is_an_error(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(_: Callable[[], None]) -> None:
        raise PermissionDeniedError("403 for AKIAIOSFODNN7EXAMPLE\n\nDebug source: ...")

    with next_write(monkeypatch, deny), pytest.raises(OSError, match=r"^403 for \S*$") as caught:
        leased(layout, None)
    assert "AKIAIOSFODNN7EXAMPLE" not in str(caught.value)
    assert read_lease(layout) is None


@on_all_stores
def test_without_conditional_writes_the_lease_is_checked_first(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(location, "update_object", lambda *_: False)
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    before = leased(layout, None)
    after = leased(layout, before)
    with messages.raises(BadOutput):
        leased(layout, before)
    assert read_lease(layout) == after


@on_all_stores
def test_file_of_a_later_driver_is_kept(layout: Layout) -> None:
    """The later driver takes over and writes right after the check of the first one."""
    first, later = leased(layout, None), list[Lease]()

    def write_later() -> None:
        later.append(leased(layout, first))
        layout.spec.write_if(guard_of(layout, later[0]), b"later")

    def check() -> None:
        check_unchanged(layout, first)
        if not later:
            write_later()

    with pytest.raises((BadOutput, BlockingIOError)):  # on a disk, nobody can take over there
        layout.spec.write_if(Guard(layout.lease_file, check), b"first")
    if not later:
        write_later()
    assert layout.spec.read() == b"later"


@on_all_stores
@pytest.mark.parametrize("conditional", [True, False])
def test_late_driver_neither_writes_nor_deletes(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, conditional: bool
) -> None:
    if not conditional:
        monkeypatch.setattr(location, "update_object", lambda *_: False)
        monkeypatch.setattr(location, "put_object", lambda *_: False)
        monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    late = guard_of(layout, leased(layout, None))
    later = guard_of(layout, leased(layout, read_lease(layout)))
    for content in (b"of the later driver", memoryview(b"again")):
        layout.spec.write_if(later, content)
        for change in (
            partial(layout.spec.write_if, late, b"late"),
            partial(layout.spec.delete_if, late),
            partial(layout.state.delete_directory_if, late),
        ):
            with pytest.raises(BadOutput):
                change()
        assert layout.spec.read() == content
    layout.spec.delete_if(later)
    layout.spec.delete_if(later)
    assert not layout.spec.exists()


def test_lock_is_free_while_a_guarded_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file may take longer than another driver tries to get the lock."""
    state, fsync = Location(str(tmp_path)), os.fsync
    lease = state / "job.json"

    def check() -> None:
        if lease.read() != b"first":
            raise BadOutput("another run has taken over")

    def fsync_slowly(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        lease.update(lambda _: b"later")
        fsync(descriptor)

    lease.update(lambda _: b"first")
    monkeypatch.setattr(os, "fsync", fsync_slowly)
    with pytest.raises(BadOutput):
        (state / "spec.json").write_if(Guard(lease, check), b"late")
    assert sorted(os.listdir(tmp_path)) == [".job.json.lock", "job.json"]
    assert lease.read() == b"later"


def test_forked_process_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may fork while the lock is held, for example for a data loader."""
    file, flock, inherited = Location(str(tmp_path / "job.json")), fcntl.flock, list[int]()

    def fork(descriptor: int, operation: int) -> None:
        inherited.append(os.dup(descriptor))
        flock(descriptor, operation)

    with monkeypatch.context() as forking:
        forking.setattr(fcntl, "flock", fork)
        file.write_if(Guard(file, lambda: None), b"first")
    file.update(lambda _: b"second")
    assert file.read() == b"second"
    for descriptor in inherited:
        os.close(descriptor)


def failing(number: int) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


class OddStore(BaseHTTPRequestHandler):
    """An S3 server that has no objects, and answers reads and conditional puts with these codes."""

    read, put = 404, 501

    def do_GET(self) -> None:
        self.answer(self.read)

    def do_HEAD(self) -> None:
        self.answer(self.read)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.put if "If-None-Match" in self.headers else 200)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def odd_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of the tests")
    with ThreadingHTTPServer(("127.0.0.1", 0), OddStore) as server:
        threading.Thread(target=server.serve_forever).start()
        yield Storage(endpoint=f"http://127.0.0.1:{server.server_port}", region="here")
        server.shutdown()


@pytest.mark.parametrize(
    ("read", "put"),
    [(404, 501), (401, 200), (403, 200)],
    ids=["not implemented", "no credentials", "other credentials"],
)
def test_store_without_conditional_puts_is_left_to_pyarrow(
    odd_store: Storage, monkeypatch: pytest.MonkeyPatch, read: int, put: int
) -> None:
    monkeypatch.setattr(OddStore, "read", read)
    monkeypatch.setattr(OddStore, "put", put)
    assert not update_object("s3", "bucket/job.json", odd_store, lambda _: b"lease")


def test_file_that_is_too_large_for_one_put_is_left_to_pyarrow(
    odd_store: Storage, tmp_path: Path
) -> None:
    """S3 refuses a put of more than 5 GiB, so a job with such a file would never complete."""
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate((5 << 30) + 1)
        content = memoryview(mmap.mmap(file.fileno(), 0))
    assert not put_object("s3", "bucket/_errors.jsonl", odd_store, content, pytest.fail)


@pytest.mark.parametrize(("read", "put"), [(503, 200), (404, 503), (404, 412)])
def test_unavailable_store_is_a_transient_error(
    odd_store: Storage, monkeypatch: pytest.MonkeyPatch, read: int, put: int
) -> None:
    """Otherwise a write without a condition could follow."""
    monkeypatch.setattr(OddStore, "read", read)
    monkeypatch.setattr(OddStore, "put", put)
    with pytest.raises(OSError, match=r"503|strong consistency") as caught:
        update_object("s3", "bucket/job.json", odd_store, lambda _: b"lease")
    assert is_transient(caught.value)


def test_broken_connection_is_a_transient_error(
    odd_store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OddStore, "answer", lambda self, _: self.connection.close())
    with pytest.raises(OSError, match="HTTP error") as caught:
        update_object("s3", "bucket/job.json", odd_store, lambda _: b"lease")
    assert is_transient(caught.value)


def test_credentials_that_obstore_cannot_read_are_left_to_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.json").write_text('{"type": "external_account"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    assert not update_object("gs", "bucket/job.json", Storage(), lambda _: b"lease")


def test_missing_bucket_is_reported_in_one_line(
    odd_store: Storage, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(OddStore, "put", 404)
    with messages.raises(OSError) as caught:
        update_object("s3", "bucket/job.json", odd_store, lambda _: b"lease")
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("key", ["a/./job.json", "a/../job.json", "a//job.json"])
def test_key_that_obstore_refuses_is_left_to_pyarrow(odd_store: Storage, key: str) -> None:
    assert not update_object("s3", f"bucket/{key}", odd_store, lambda _: b"lease")


@pytest.mark.parametrize("anonymous", [True, False])
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        ("s3", ["AWS_SHARED_CREDENTIALS_FILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]),
        ("az", ["AZURE_CONFIG_DIR", "AZURE_STORAGE_KEY"]),
    ],
)
def test_credentials_that_only_pyarrow_finds_are_left_to_it(
    scheme: str,
    names: list[str],
    anonymous: bool,
    keys: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, *variables = names
    monkeypatch.setenv(files, str(tmp_path))
    for name in variables:
        monkeypatch.setenv(name, "YQ==" if keys else "")
    storage = Storage(endpoint="http://127.0.0.1:9/account", region="here", anonymous=anonymous)
    bucket = obstore_bucket(scheme, "bucket", storage)
    assert (bucket is not None) == (anonymous or keys)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [("s3", "AWS_ENDPOINT"), ("gs", "GOOGLE_BASE_URL"), ("az", "AZURE_STORAGE_ENDPOINT")],
)
@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9/account"])
def test_endpoint_that_pyarrow_does_not_know_is_not_used(
    scheme: str, name: str, endpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the lease would be in another store than the rows."""
    monkeypatch.setenv(name, "http://127.0.0.1:8/other")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    storage = Storage(endpoint=endpoint, region="here", anonymous=True)
    bucket = obstore_bucket(scheme, "bucket", storage, retries=0)
    assert (bucket is not None) == (endpoint is not None)
    if bucket is not None:
        with pytest.raises(GenericError, match=r"127\.0\.0\.1:9"):
            bucket.get("job.json")
