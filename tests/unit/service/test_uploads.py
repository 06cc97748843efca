"""Uploads in parts, and files that expire, as the client of OpenAI uses them."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Upload

from batchinference.service.uploads import OPEN_SECONDS, UploadLimits
from support.service.cluster import FakeCluster
from support.service.running import Running, requests, running

CONTENT = requests(20)


async def begun(service: Running, **changes: Any) -> Upload:
    given = {"bytes": len(CONTENT), "filename": "a.jsonl", "mime_type": "application/jsonl"}
    return await service.client().uploads.create(**{**given, "purpose": "batch", **changes})


async def parts_of(service: Running, upload: Upload, *parts: bytes) -> list[str]:
    add = service.client().uploads.parts.create
    return [(await add(upload.id, data=part)).id for part in parts]


async def test_parts_become_a_file(service: Running) -> None:
    upload = await begun(service)
    second, first = await parts_of(service, upload, CONTENT[100:], CONTENT[:100])
    complete, md5 = service.client().uploads.complete, hashlib.md5(CONTENT, usedforsecurity=False)
    done = await complete(upload.id, part_ids=[first, second], md5=md5.hexdigest())
    assert (upload.status, done.status) == ("pending", "completed")
    assert done.file is not None
    content = await service.client().files.content(done.file.id)
    assert (content.content, done.file.filename) == (CONTENT, "a.jsonl")
    again = await complete(upload.id, part_ids=[first, second])
    assert again.file == done.file, "the answer to the first request may be lost"
    assert not [path for path in service.objects() if "/part_" in path]


async def test_the_client_divides_a_file(service: Running, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(CONTENT)
    done = await service.client().uploads.upload_file_chunked(
        file=tmp_path / "b.jsonl", mime_type="application/jsonl", purpose="batch", part_size=333
    )
    assert done.file is not None
    assert (await service.client().files.content(done.file.id)).content == CONTENT


async def test_a_cancelled_upload_leaves_no_parts(service: Running) -> None:
    upload = await begun(service)
    (part,) = await parts_of(service, upload, CONTENT)
    assert (await service.client().uploads.cancel(upload.id)).status == "cancelled"
    assert not [path for path in service.objects() if "/part_" in path]
    with pytest.raises(openai.BadRequestError):
        await service.client().uploads.complete(upload.id, part_ids=[part])


async def test_content_that_is_not_as_announced_becomes_no_file(service: Running) -> None:
    upload, complete = await begun(service), service.client().uploads.complete
    parts, half = await parts_of(service, upload, CONTENT, CONTENT[:50])
    for wrong in ([half], [parts, half], ["part_" + "0" * 32], ["../x"], []):
        with pytest.raises(openai.BadRequestError):
            await complete(upload.id, part_ids=wrong)
    with pytest.raises(openai.BadRequestError):
        await complete(upload.id, part_ids=[parts], md5="0" * 32)
    assert [each async for each in service.client().files.list()] == []
    assert (await complete(upload.id, part_ids=[parts])).status == "completed"


async def test_limits_of_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, FakeCluster(), UploadLimits(max_part=10)) as service:
        upload = await begun(service)
        with pytest.raises(openai.APIStatusError, match="larger than 10"):
            await parts_of(service, upload, CONTENT)
        for changes in ({"bytes": 0}, {"purpose": "assistants"}, {"bytes": 10**15}):
            with pytest.raises(openai.BadRequestError):
                await begun(service, **changes)
        now = time.time() + OPEN_SECONDS + 2
        monkeypatch.setattr(time, "time", lambda: now)
        with pytest.raises(openai.BadRequestError, match="expired"):
            await parts_of(service, upload, b"a")


async def test_no_key_gives_access_to_another_upload(service: Running) -> None:
    upload = await begun(service)
    for name in (upload.id, "upload_x", "..%2f"):
        with pytest.raises(openai.NotFoundError):
            await service.client("team-b").uploads.cancel(name)


async def test_an_expired_file_is_gone(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client = service.client()
    expires: Any = {"anchor": "created_at", "seconds": 3600}
    given: Any = {"file": ("a.jsonl", CONTENT), "purpose": "batch"}
    file = await client.files.create(**given, expires_after=expires)
    assert (file.filename, bool(file.expires_at)) == ("a.jsonl", True)
    kept = await client.files.create(**given)
    upload = await begun(service, expires_after=expires)
    (part,) = await parts_of(service, upload, CONTENT)
    done = await client.uploads.complete(upload.id, part_ids=[part])
    assert done.file is not None
    assert done.file.expires_at
    now = time.time() + 3602
    monkeypatch.setattr(time, "time", lambda: now)
    assert [each.id async for each in client.files.list()] == [kept.id]
    with pytest.raises(openai.NotFoundError):
        await client.files.content(file.id)
    assert sum("jsonl" in path for path in service.objects()) == 1
    with pytest.raises(openai.BadRequestError):
        await client.files.create(**given, expires_after={"anchor": "created_at", "seconds": 1})


async def test_an_expired_file_is_kept_until_its_batches_have_ended(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = service.client()
    given = await service.upload(expires_after={"anchor": "created_at", "seconds": 3600})
    await client.batches.create(**given)
    now = time.time() + 3602
    monkeypatch.setattr(time, "time", lambda: now)
    for phase, kept in (("Running", True), ("Succeeded", False)):
        service.cluster.set_status({"phase": phase, "completionTime": None})
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(given["input_file_id"])
        assert any("jsonl" in path for path in service.objects()) == kept
