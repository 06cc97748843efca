"""Manifests: every address is fetched, missing files fail their rows, requests are retried, and few
bytes and images are in memory."""

from __future__ import annotations

import email.utils
import re
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.readers.url_manifest import UrlManifestReader
from batchinference.pipeline.media import images
from batchinference.pipeline.storage import allowed_addresses, retry
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.url_fetcher import Fetcher
from batchinference.spec.read import ManifestOptions
from support.inputs.formats import pictures, png
from support.inputs.read_files import Outcome, cut_up, open_input, read_files
from support.servers.loopback import handled_by

PICTURES = pictures(3)


@dataclass
class Web:
    """A running server. Each path gives its answers in order, and then repeats the last one. An
    answer is a status, or content with status 200. Other paths answer 404."""

    url: str
    paths: dict[str, list[int | bytes]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    headers: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """Paths whose next answer is cut off after its first byte."""

    def answer(self, path: str) -> int | bytes:
        answers = self.paths.get(path, [404])
        self.asked[path] += 1
        return answers[min(self.asked[path], len(answers)) - 1]


@contextmanager
def web_server() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = web.answer(self.path.partition("?")[0])
            content = answer if isinstance(answer, bytes) else b""
            if answer == 0:  # close the connection without an answer
                self.close_connection = True
                return
            self.send_response(200 if isinstance(answer, bytes) else answer)
            for name, value in web.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.path in web.broken:
                web.broken.remove(self.path)
                self.close_connection = True
                content = content[:1]
            self.wfile.write(content)

    with handled_by(Handler) as port:
        web = Web(f"http://127.0.0.1:{port}")
        yield web


@pytest.fixture
def web(no_backoff: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """Yield a web server whose address counts as public. Retries do not wait."""
    monkeypatch.setattr(allowed_addresses, "is_public", lambda _: True)
    with web_server() as web:
        yield web


def manifest(directory: Path, *uris: str | None, name: str = "a.parquet", **columns: Any) -> Path:
    table = pa.table({"uri": pa.array(uris, pa.string()), **columns})
    pq.write_table(table, directory / name)
    return directory / name


def test_fetched_content_is_an_added_column(tmp_path: Path, web: Web) -> None:
    web.paths = {"/a": [b"first"], "/b": ["grün".encode()]}
    manifest(tmp_path, f"{web.url}/a", f"{web.url}/b", id=[1, 2], tags=[["x"], []])
    rows = [
        {"uri": f"{web.url}/a", "id": 1, "tags": ["x"], "bytes": b"first"},
        {"uri": f"{web.url}/b", "id": 2, "tags": [], "bytes": "grün".encode()},
    ]
    for options in ({}, {"decode": "bytes"}):
        outcome = read_files("manifest", tmp_path, **options)
        assert (outcome.good, outcome.ends) == (rows, {0: 2})
    web.paths["/a"] = ["\ufefffirst".encode()]
    texts = read_files("manifest", tmp_path, decode="text")
    assert texts.column("text").tolist() == ["first", "grün"]
    assert "bytes" not in texts.schema.names


def test_relative_paths_start_at_the_manifest(tmp_path: Path) -> None:
    for name in ("in/deep/x.txt", "in/y.txt", "z.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    absolute = str(tmp_path / "z.txt")
    uris = ["deep/x.txt", "./y.txt", "../z.txt", absolute, f"file://{absolute}"]
    manifest(tmp_path / "in", *uris)
    outcome = read_files("manifest", tmp_path / "in", decode="text", allow=[str(tmp_path)])
    assert outcome.column("text").tolist() == ["in/deep/x.txt", "in/y.txt", *["z.txt"] * 3]


def test_images_are_decoded(tmp_path: Path) -> None:
    for number, picture in enumerate(PICTURES):
        (tmp_path / f"{number}.png").write_bytes(png(picture))
    manifest(tmp_path, "0.png", "1.png", "2.png")
    for size in (None, [6, 5]):
        column = read_files("manifest", tmp_path, decode="image", size=size).column("image")
        assert all(map(np.array_equal, column, PICTURES)), size


def test_csv_manifest_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a")
    (tmp_path / "a.csv").write_text("id,url\n1,x\n2,x\n")
    assert read_files("manifest", tmp_path, column="url", decode="text").good == [
        {"id": 1, "url": "x", "text": "a"},
        {"id": 2, "url": "x", "text": "a"},
    ]


@pytest.mark.parametrize("name", ["m.parq", "M.PQ", "m.parquet"])
def test_manifest_may_have_each_extension_of_parquet(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("one")
    pq.write_table(pa.table({"uri": ["a.txt"]}), tmp_path / name)
    assert [row["text"] for row in read_files("manifest", tmp_path, decode="text").good] == ["one"]


def test_missing_content_fails_its_row(tmp_path: Path, web: Web) -> None:
    web.paths = {"/there": [b"x"], "/removed": [410], "/secret": [403]}
    (tmp_path / "folder").mkdir()
    uris = [
        *(f"{web.url}/{name}" for name in ("there", "missing", "removed", "secret")),
        *("nothing/here", "folder", None, "", "ftp://host/file", "http://"),
        f"{web.url}/there",
    ]
    manifest(tmp_path, *uris)
    outcome = read_files("manifest", tmp_path / "a.parquet")
    assert outcome.order == [(0, 0), (0, 10)]
    expected = [
        r"/missing answers 404 Not Found",
        r"/removed answers 410 Gone",
        r"/secret answers 403 Forbidden",
        r"nothing/here does not exist",
        r"folder cannot be read: .* is a directory",
        r"there is no address in column 'uri', but None",
        r"there is no address in column 'uri', but ''",
        r"nothing can be fetched from ftp://",
        r"cannot be fetched: InvalidURL",
    ]
    for number, pattern in enumerate(expected, 1):
        assert re.search(pattern, outcome.bad[0, number])
    assert web.asked["/missing"] == 1


def test_undecodable_content_fails_its_row(tmp_path: Path) -> None:
    contents = {"image": (png(PICTURES[0]), b"no picture"), "text": (b"a", b"\xff")}
    for decode, (good, bad) in contents.items():
        (tmp_path / "good").write_bytes(good)
        (tmp_path / "bad").write_bytes(bad)
        manifest(tmp_path, "good", "bad", "good")
        outcome = read_files("manifest", tmp_path / "a.parquet", decode=decode)
        assert (outcome.order, list(outcome.bad)) == ([(0, 0), (0, 2)], [(0, 1)]), decode


def test_transient_errors_are_retried(tmp_path: Path, web: Web) -> None:
    errors = [408, 409, 429, 500, 503, 599, 0]
    web.paths = {f"/{error}": [error, error, b"content"] for error in errors}
    manifest(tmp_path, *(f"{web.url}{path}" for path in web.paths))
    assert read_files("manifest", tmp_path).column("bytes").tolist() == [b"content"] * len(errors)
    assert web.asked == dict.fromkeys(web.paths, 3)


@pytest.mark.parametrize("asked", ["seconds", "date"])
def test_retry_after_is_obeyed(
    asked: str, tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    date = email.utils.formatdate(time.time() + 300, usegmt=True)
    web.headers = {"Retry-After": "300" if asked == "seconds" else date}
    web.paths = {"/a": [429, b"x"], "/b": [503, b"x"]}
    manifest(tmp_path, f"{web.url}/a", f"{web.url}/b")
    assert len(read_files("manifest", tmp_path).good) == 2
    assert waited == pytest.approx([300, 300], abs=30 if asked == "date" else 0)


def test_truncated_response_is_retried(tmp_path: Path, web: Web) -> None:
    web.paths = {"/a": [b"content", b"content"]}
    web.broken = {"/a"}
    manifest(tmp_path, f"{web.url}/a")
    assert read_files("manifest", tmp_path).column("bytes").tolist() == [b"content"]
    assert web.asked["/a"] == 2


def test_permanent_server_error_ends_the_job(tmp_path: Path, web: Web) -> None:
    web.paths = {"/a": [b"x"], "/b": [503], "/c": [429, b"x"]}
    for uri, headers, reason in (
        (f"{web.url}/b", {}, r"/b answers 503 Service Unavailable \(with read.options.onUnr"),
        (f"{web.url}/c", {"Retry-After": "86400"}, "/c answers 429 Too Many Requests"),
        ("http://127.0.0.1:1/a", {}, r"127.0.0.1:1/a gives no answer: ConnectionError"),
    ):
        web.headers = headers
        manifest(tmp_path, f"{web.url}/a", uri)
        with pytest.raises(JobFailure, match=reason):
            read_files("manifest", tmp_path)
    assert (web.asked["/b"], web.asked["/c"]) == (retry.HTTP.attempts, 1)


def test_on_unreachable_error_fails_rows_only(tmp_path: Path, web: Web) -> None:
    web.paths = {"/a": [b"x"], "/b": [503]}
    manifest(tmp_path, f"{web.url}/b", f"{web.url}/a", "http://127.0.0.1:1/c")
    outcome = read_files("manifest", tmp_path, onUnreachable="error")
    assert outcome.order == [(0, 1)]
    assert list(outcome.bad) == [(0, 0), (0, 2)]


def test_errors_hide_credentials(tmp_path: Path, web: Web) -> None:
    secret = "s3cr3t-5926"
    address = web.url.replace("://", f"://user:{secret}@")
    away = f"http://user:{secret}@127.0.0.1:1/x?X-Amz-Signature={secret}"
    manifest(tmp_path, f"{address}/missing?X-Amz-Signature={secret}", away)
    outcome = read_files("manifest", tmp_path, onUnreachable="error")
    assert len(outcome.bad) == 2
    assert secret not in str(outcome.bad)
    with pytest.raises(JobFailure) as caught:
        read_files("manifest", manifest(tmp_path, away, name="b.parquet"))
    assert secret not in str(caught.value)


def test_missing_or_clashing_column_is_rejected(tmp_path: Path) -> None:
    manifest(tmp_path, "x", text=["a"])
    with pytest.raises(BadInput, match=r"has no column 'url', only uri, text"):
        open_input("manifest", tmp_path, column="url")
    with pytest.raises(BadInput, match=r"has a column 'text' of its own"):
        open_input("manifest", tmp_path, decode="text")


def test_damaged_manifest_is_one_failed_row(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a")
    manifest(tmp_path, "x", name="b.parquet")
    (tmp_path / "a.parquet").write_bytes(b"no manifest")
    outcome = read_files("manifest", tmp_path)
    assert (list(outcome.bad), outcome.order) == ([(0, 0)], [(1, 0)])


class TestParts:
    """A manifest that several tasks read."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        (tmp_path / "x").write_text("a")
        numbers = list(range(100))
        manifest(tmp_path, *["x"] * 100, id=numbers)
        lines = [f"{'x' if number % 7 else 'missing'},{number}\n" for number in range(30)]
        lines[4] = "x,4,one field too many\n"
        (tmp_path / "b.csv").write_text("uri,id\n" + "".join(lines))
        return tmp_path

    def test_parts_together_hold_all_rows(self, directory: Path) -> None:
        opened = open_input("manifest", directory, decode="text", fileExtensions=["parquet", "csv"])
        content = opened.read()
        for parts in (1, 2, 3, 13, 130, 500):
            cut = cut_up(opened, parts)
            read = Outcome([b for part in cut for b in opened.file_rows.read([part])])
            assert read.order == content.order
            assert read.good == content.good
            assert read.bad == content.bad
            assert read.ends == content.ends == {0: 100, 1: 30}
            assert sum(len(batch.input_ids) for batch in read.batches) == 130
            assert abs(len(cut) - min(parts, 130)) <= 2
        assert opened.given.count() == RowCount(130, estimated=False)

    def test_task_fetches_only_its_rows(self, tmp_path: Path, web: Web) -> None:
        web.paths = {f"/{number}": [b"x"] for number in range(100)}
        manifest(tmp_path, *(f"{web.url}/{number}" for number in range(100)))
        opened = open_input("manifest", tmp_path)
        tasks = opened.given.read_tasks(4)
        assert len(tasks) == 4
        for task in tasks:
            list(task())
        assert set(web.asked.values()) == {1}
        assert len(web.asked) == 100


SIDE = 100
PICTURE_BYTES = 3 * SIDE**2


class Picture(np.ndarray):
    """Pixels, counted while they are in memory."""

    alive = 0

    def __array_finalize__(self, _: Any) -> None:
        Picture.alive += 1

    def __del__(self) -> None:
        Picture.alive -= 1


class Content(bytes):
    """Fetched bytes, counted while they are in memory."""

    alive = 0

    def __new__(cls) -> Content:
        cls.alive += 1
        return super().__new__(cls, 1000)

    def __del__(self) -> None:
        Content.alive -= 1


def tables(directory: Path, options: dict[str, Any], **sizes: int) -> Iterator[pa.Table]:
    """Yield the tables that are read from a manifest of 26 addresses by a reader with `sizes`."""
    pq.write_table(pa.table({"uri": [*string.ascii_lowercase]}), directory / "a.parquet")
    file = Location(str(directory / "a.parquet"))
    reader = UrlManifestReader(ManifestOptions(**options))
    reader.__dict__.update(sizes)
    reader.prepare([file])
    yield from reader.read(file)


def read(
    path: Path, decode: Callable[..., np.ndarray], patch: pytest.MonkeyPatch, **sizes: int
) -> list[int]:
    """Return the number of rows in each table of pictures."""
    patch.setattr(Fetcher, "fetch", lambda *_: Content())
    patch.setattr(images, "decode", decode)
    read = tables(path, {"decode": "image"}, table_bytes=2 * PICTURE_BYTES, **sizes)
    return [table.num_rows for table in read]


def test_images_are_decoded_when_their_table_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def decode(*_: Any) -> np.ndarray:
        seen.append(Picture.alive)
        return Picture((SIDE, SIDE, 3), np.uint8)

    assert read(tmp_path, decode, monkeypatch) == [2] * 13
    assert max(seen) <= 3, "those of a table, and the one behind it"


def test_fetched_content_is_freed_when_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def decode(*_: Any) -> np.ndarray:
        seen.append(Content.alive)
        return np.zeros((1, 1, 3), np.uint8)

    assert read(tmp_path, decode, monkeypatch, prefetched_rows=4) == [26]
    assert max(seen) <= 4 + 2, "those that wait, the one that is decoded, and the one before it"


def test_bytes_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def fetched(_: Fetcher, uri: str, __: Location) -> bytes:
        begun.append(uri)
        return bytes(1000)

    monkeypatch.setattr(Fetcher, "fetch", fetched)
    yielded = 0
    for table in tables(tmp_path, {"maxBytes": 1000}, prefetched_bytes=4000, table_bytes=1):
        yielded += table.num_rows
        assert len(begun) <= yielded + 4 + 1, "the table that is yielded, and the row behind it"
    assert yielded == len(begun) == 26
