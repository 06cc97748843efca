"""Clients that have no key, the key of another namespace, or bad intentions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from batchinference.service.batch_files import Files, StoredFile
from batchinference.service.line_check import FileCheck, LineChecker
from batchinference.service.uploads import UploadLimits
from support.service.cluster import FakeCluster
from support.service.running import KEYS, Running, request_line, requests, running

HEAD = "POST /v1/files HTTP/1.1\r\nHost: a\r\n"
AUTHORIZED = f"Authorization: Bearer {KEYS['team-a']}\r\n"
FORM = "Content-Type: multipart/form-data; boundary=x\r\n"
PART = '--x\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'


async def answer_to(service: Running, sent: str, *, close: bool = False) -> tuple[int, str]:
    """Send bytes and return the status and the text of the answer; 0 if there is none."""
    host = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    writer.write(sent.encode("latin-1"))
    if close:
        writer.close()
        return 0, ""
    line = (await reader.readline()).decode()
    text = (await reader.read(65536)).decode(errors="replace") if line else ""
    writer.close()
    return int(line.split()[1]) if line else 0, text


def form(*parts: str) -> str:
    body = "".join(parts) + "--x--\r\n"
    return f"{HEAD}{AUTHORIZED}{FORM}Content-Length: {len(body)}\r\n\r\n{body}"


def part(name: str, value: str, more: str = "") -> str:
    return PART.format(name, more, value)


FILE = part("file", request_line(0), '; filename="a"')
PURPOSE = part("purpose", "batch")


async def files_of(service: Running) -> list[str]:
    return [each.id async for each in service.client().files.list()]


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer wrong\r\n",
        f"Authorization: Basic {KEYS['team-a']}\r\n",
        f"Authorization: Bearer {KEYS['team-a']} {KEYS['team-b']}\r\n",
        2 * AUTHORIZED,
    ],
)
@pytest.mark.parametrize(
    "request_line",
    ["GET /v1/files", "POST /v1/files", "GET /v1/batches", "GET /v1/models", "GET /v1/other"],
)
async def test_each_path_needs_one_valid_key(
    service: Running, authorization: str, request_line: str
) -> None:
    sent = f"{request_line} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n{authorization}\r\n"
    status, text = await answer_to(service, sent)
    assert status == 401
    assert "invalid_api_key" in text


async def test_a_hash_is_no_key(service: Running) -> None:
    (hashed,) = {file.read_text().strip() for file in service.root.parent.glob("keys/team-a.*")}
    with pytest.raises(openai.AuthenticationError):
        await service.client(api_key=hashed).models.list()


async def test_a_removed_key_is_refused(service: Running) -> None:
    await service.client().models.list()
    next(service.root.parent.glob("keys/team-a.*")).unlink()
    with pytest.raises(openai.AuthenticationError):
        await service.client().models.list()


async def test_no_key_gives_access_to_another_namespace(service: Running) -> None:
    ours, theirs = service.client("team-a"), service.client("team-b")
    given = await service.upload()
    file, batch = given["input_file_id"], await ours.batches.create(**given)
    attempts: list[Callable[[], Any]] = [
        lambda: theirs.files.retrieve(file),
        lambda: theirs.files.content(file),
        lambda: theirs.files.delete(file),
        lambda: theirs.batches.retrieve(batch.id),
        lambda: theirs.batches.cancel(batch.id),
    ]
    for attempt in attempts:
        with pytest.raises(openai.NotFoundError):
            await attempt()
    with pytest.raises(openai.BadRequestError):
        await theirs.batches.create(**given)
    assert [each async for each in theirs.files.list()] == []
    assert [each async for each in theirs.batches.list()] == []
    assert await files_of(service) == [file]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files/../../team-b/files",
        "/v1/files/..%2f..%2fteam-b",
        "/v1/files/file-{id}%2f..%2f..%2f..%2fteam-b",
        "/v1/files/%2e%2e/content",
        "/v1/files/file-output-..%2f..%2f..%2fetc/content",
        "/v1/files/file-" + "0" * 5000,
        "/v1/batches/batch_..%2f..%2fconfigmaps%2fx",
        "/v1/batches/batch_" + "٣" * 32,
        "/v1/../healthz/../v1/batches/x",
    ],
)
async def test_ids_are_no_paths(service: Running, path: str) -> None:
    path = path.encode().decode("latin-1")
    for method in ("GET", "DELETE"):
        status, _ = await answer_to(service, f"{method} {path} HTTP/1.1\r\n{AUTHORIZED}\r\n")
        assert status in (400, 401, 404, 405)


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length : 5\r\n",
        "X: a\r\n\x00b: c\r\n",
        "X: " + "a" * 20_000 + "\r\n",
    ],
)
async def test_ambiguous_requests_are_refused(service: Running, headers: str) -> None:
    smuggled = f"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n{AUTHORIZED}\r\n"
    status, text = await answer_to(service, f"{HEAD}{AUTHORIZED}{headers}\r\n{smuggled}")
    assert status == 400
    assert "small" not in text


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ((), "file"),
        ((), "data"),
        ((PURPOSE,), "file"),
        ((FILE,), "purpose"),
        ((FILE, part("purpose", "batch" * 1000)), "purpose"),
        ((PURPOSE, FILE, FILE), "file"),
        ((PURPOSE, part("file", "", "")), "file"),
        ((PURPOSE, part("file", "", f'; filename="{"a" * 181}"')), "file"),
        ((part("other", "x"), FILE, PURPOSE), "other"),
        ((FILE, *20 * (PURPOSE,)), None),
    ],
)
async def test_invalid_forms_leave_no_file(
    service: Running, parts: tuple[str, ...], field: str | None
) -> None:
    path = "uploads/x/parts" if field == "data" else "files"
    status, text = await answer_to(service, form(*parts).replace("files", path, 1))
    assert status == 400
    assert json.loads(text[text.index("{") : text.rindex("}") + 1])["error"]["param"] == field
    assert await files_of(service) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", ""),
        (f"multipart/form-data; boundary={'x' * 100}", ""),
        ("multipart/form-data; boundary=x", "garbage"),
        ("multipart/form-data; boundary=x", "--x\r\nno header\r\n\r\na\r\n--x--\r\n"),
        ("text/plain", "garbage"),
    ],
)
async def test_a_malformed_form_is_an_error_of_the_client(
    service: Running, kind: str, body: str
) -> None:
    about = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    status, text = await answer_to(service, f"{HEAD}{AUTHORIZED}{about}\r\n{body}")
    assert (status, "invalid_request_error" in text) == (400, True)


async def test_the_purpose_may_follow_the_file(service: Running) -> None:
    assert (await answer_to(service, form(FILE, PURPOSE)))[0] == 200
    assert len(await files_of(service)) == 1


@pytest.mark.parametrize("length", [10, 100, 300])
async def test_an_upload_that_ends_early_leaves_no_file(service: Running, length: int) -> None:
    full = form(PURPOSE, FILE)
    start = full.index("\r\n\r\n") + 4
    await answer_to(service, full[: start + length], close=True)
    assert await files_of(service) == []


async def test_a_slow_upload_is_ended(tmp_path: Path) -> None:
    async with running(tmp_path, FakeCluster(), UploadLimits(grace_seconds=0.05)) as service:
        status, _ = await answer_to(service, form(PURPOSE, FILE)[:-30])
        assert status == 408
        assert await files_of(service) == []


async def test_uploads_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, active = Files.add, list[int]()

    async def add(*arguments: Any) -> StoredFile:
        active.append(1)
        assert len(active) == 1
        stored = await real(*arguments)
        active.pop()
        return stored

    monkeypatch.setattr(Files, "add", add)
    async with running(tmp_path, FakeCluster(), UploadLimits(at_once=1)) as service:
        files = service.client(max_retries=0, timeout=30).files
        sent = [files.create(file=(f"{n}", requests(10)), purpose="batch") for n in range(4)]
        assert len({each.id for each in await asyncio.gather(*sent)}) == 4


def check_of(*blocks: bytes, max_lines: int = 100) -> FileCheck:
    checker = LineChecker(max_lines)
    for block in blocks:
        checker.add(block)
    return checker.end()


def test_lines_may_be_split_between_blocks() -> None:
    content = requests(5)
    full = check_of(content)
    assert (full.lines, full.model, full.errors) == (5, "small", [])
    for size in (1, 7, len(content) - 1):
        blocks = [content[n : n + size] for n in range(0, len(content), size)]
        assert check_of(*blocks) == full
    assert check_of(content.rstrip(b"\n")) == full


def test_a_long_line_is_not_kept() -> None:
    checker = LineChecker(10, max_line=1000)
    for _ in range(100):
        checker.add(b"x" * 100)
        assert len(checker._rest) <= 1000
    checker.add(b"\n" + requests(1))
    end = checker.end()
    assert [(error.code, error.line) for error in end.errors] == [("invalid_json_line", 1)]
    assert end.lines == 1


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [('"\\ud83d"', True), ('["\\ud83d", NaN]', False), ('"\\ud83d' + "[" * 100_000, False)],
)
def test_every_text_of_json_is_accepted(value: str, is_valid: bool) -> None:
    line = request_line(0, body={"model": "small", "prompt": 1}).replace("1}", f"{value}}}")
    assert (check_of(line.encode()).errors == []) is is_valid


@pytest.mark.parametrize("field", ["custom_id", "body"])
def test_names_are_valid_unicode(field: str) -> None:
    value = {"custom_id": "\ud83d", "body": {"model": "\ud83d"}}[field]
    (error,) = check_of(request_line(0, **{field: value}).encode()).errors
    assert error.code == "missing_required_parameter"


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert check_of(b"\xef\xbb", b"\xbf" + requests(2)) == check_of(requests(2))
    assert len(check_of(requests(1) + b"\xef\xbb\xbf" + request_line(2).encode()).errors) == 1


@pytest.mark.parametrize("content", [requests(30), b"\n" * 30])
def test_lines_after_the_limit_are_not_kept(content: bytes) -> None:
    checker = LineChecker(10)
    for _ in range(100):
        checker.add(content)
    assert len(checker._id_hashes) == 11
    assert [error.code for error in checker.end().errors][:1] == ["too_many_tasks"]


def test_repeated_ids_are_found_at_any_distance() -> None:
    lines = [*range(40), 3, 3, 39]
    content = "\n".join(map(request_line, lines)).encode()
    assert [error.line for error in check_of(content).errors] == [41, 42, 43]
