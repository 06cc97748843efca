"""Files, as the unmodified client of OpenAI uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import obstore
import openai
import pytest

from batchinference.service.batch_files import READ_BYTES
from support.service.cluster import FakeCluster
from support.service.running import Running, request_line, requests, running


async def test_an_uploaded_file_can_be_read_listed_and_deleted(service: Running) -> None:
    files = service.client().files
    content = requests(3)
    sent = await files.create(file=("requests.jsonl", content), purpose="batch")
    assert (sent.filename, sent.bytes, sent.purpose) == ("requests.jsonl", len(content), "batch")
    assert await files.retrieve(sent.id) == sent
    assert (await files.content(sent.id)).content == content
    assert [each async for each in files.list()] == [sent]
    assert (await files.delete(sent.id)).deleted
    assert [each async for each in files.list()] == []
    with pytest.raises(openai.NotFoundError):
        await files.retrieve(sent.id)
    assert service.objects() == []


async def test_a_file_of_many_blocks_is_stored_as_sent(service: Running) -> None:
    content = requests(100_000)
    assert len(content) > 10_000_000
    sent = await service.client().files.create(file=("large.jsonl", content), purpose="batch")
    assert (await service.client().files.content(sent.id)).content == content


async def test_pages_of_files_are_complete_in_both_orders(service: Running) -> None:
    files = service.client().files
    sent = [
        (await files.create(file=(f"{n}.jsonl", requests(1)), purpose="batch")).filename
        for n in range(5)
    ]
    assert [each.filename async for each in files.list(limit=2)] == sent[::-1]
    assert [each.filename async for each in files.list(limit=2, order="asc")] == sent
    assert [each async for each in files.list(purpose="batch_output")] == []


async def test_files_can_be_deleted_while_they_are_listed(service: Running) -> None:
    files = service.client().files
    for n in range(5):
        await files.create(file=(f"{n}.jsonl", requests(1)), purpose="batch")
    async for each in files.list(limit=2):
        await files.delete(each.id)
        (service.root / "team-a" / "files" / each.id).rmdir()  # object stores have no directories
    assert [each async for each in files.list()] == []


@pytest.mark.parametrize("check", ["{", '{"errors": [1]}', " " * 2**20 + '{"lines": 1}', None])
async def test_a_changed_check_of_a_file_is_refused(service: Running, check: str | None) -> None:
    given = await service.upload()
    (stored,) = service.root.glob("team-a/files/*/check.json")
    stored.unlink() if check is None else stored.write_text(check)
    with pytest.raises(openai.BadRequestError, match="Upload it again"):
        await service.client().batches.create(**given)


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "a/b\\c.jsonl", "ä €.jsonl", "..", "%2e%2e%2f", "CON:*?.jsonl"]
)
async def test_a_name_is_kept_and_is_no_path(service: Running, name: str) -> None:
    sent = await service.client().files.create(file=(name, requests(1)), purpose="batch")
    assert sent.filename == name
    assert [path.split("/")[:3] for path in service.objects()] == 2 * [["team-a", "files", sent.id]]


async def test_too_large_a_file_is_refused_and_does_not_appear(tmp_path: Path) -> None:
    async with running(tmp_path, FakeCluster(), maxFileBytes=1000) as service:
        with pytest.raises(openai.APIStatusError) as refused:
            await service.client().files.create(file=("a.jsonl", requests(20)), purpose="batch")
        assert refused.value.status_code == 413
        assert service.objects() == []


async def test_a_file_for_another_purpose_is_refused(service: Running) -> None:
    with pytest.raises(openai.BadRequestError):
        await service.client().files.create(file=("a.jsonl", requests(1)), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError):
        await service.upload(extra_body={"other": "x"})
    assert [each async for each in service.client().files.list()] == []


async def test_models_are_those_of_the_namespace(service: Running) -> None:
    for namespace, more in (("team-a", []), ("team-b", ["large"])):
        ids = [each.id async for each in service.client(namespace).models.list()]
        assert ids == ["small", "failing", *more]


async def test_a_download_that_fails_is_no_shorter_file(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, body = service.client().files, {"model": "small", "prompt": "x" * READ_BYTES}
    content = request_line(0, body=body).encode()
    sent = await files.create(file=("a.jsonl", content), purpose="batch")
    read = obstore.get_range_async

    async def fail_at_the_end(store: Any, path: str, *, start: int, length: int) -> Any:
        if start:
            raise OSError("the store is gone")
        return await read(store, path, start=start, length=length)

    monkeypatch.setattr(obstore, "get_range_async", fail_at_the_end)
    with pytest.raises((openai.APIConnectionError, httpx2.HTTPError)):
        await files.content(sent.id)
