"""The files of batches whose jobs have run."""

from __future__ import annotations

import asyncio
import json
import os
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from batchinference.service.batch_files import ERROR_FILE, MAX_STATE
from batchinference.spec.report import JobState
from support.jobs.without_ray import run_without_ray
from support.servers.loopback import handled_by
from support.service.running import FAILING_ROW, Running, request_line, requests

ROWS = 20


async def created(service: Running, model: str = "small") -> Batch:
    return await service.create(requests(ROWS, model))


def output_of(service: Running, batch: Batch) -> Path:
    return service.root / "team-a/batches" / batch.id.replace("_", "-")


async def lines_of(service: Running, file: str | None) -> list[Any]:
    assert file is not None
    content = await service.client().files.content(file)
    return [json.loads(line) for line in content.content.splitlines()]


async def finished(service: Running, batch: Batch, phase: str, written: int = ROWS) -> Batch:
    """Return the batch after its job has reached a phase."""
    conditions = [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
    counts = {"written": written, "failed": 1}
    service.cluster.set_status({"phase": phase, "counts": counts, "conditions": conditions})
    return await service.client().batches.retrieve(batch.id)


class Endpoint(BaseHTTPRequestHandler):
    """An endpoint that refuses one of the requests."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refused = request["messages"][0]["content"] == f"question {FAILING_ROW}"
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        good = {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
        answer = {"error": {"message": "refused"}} if refused else good
        self.send_response(400 if refused else 200)
        content = json.dumps(answer).encode()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


async def test_answers_and_refusals_of_an_endpoint_are_two_files(service: Running) -> None:
    batch = await created(service)
    job = service.cluster.only()
    with handled_by(Endpoint) as port:
        url = f"http://127.0.0.1:{port}/v1"
        model = {"runtime": "http", "api": "chat", "url": url, "inputs": {"body": "body"}}
        job["spec"]["steps"] = [
            {"name": "answer", "model": {**model, "request": "body", "output": "response"}}
        ]
        report = await asyncio.to_thread(run_without_ray, job)
    counts = report.counts.model_dump(by_alias=True)
    service.cluster.set_status({"phase": "Succeeded", "counts": counts})
    done = await service.client().batches.retrieve(batch.id)
    assert done.request_counts is not None
    assert done.request_counts.model_dump() == {"total": ROWS, "completed": ROWS - 1, "failed": 1}
    assert done.usage is not None
    used = (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens)
    assert used == (3 * (ROWS - 1), 2 * (ROWS - 1), 5 * (ROWS - 1))
    answers = await lines_of(service, done.output_file_id)
    assert {line["response"]["status_code"] for line in answers} == {200}
    (refusal,) = await lines_of(service, done.error_file_id)
    assert refusal["custom_id"] == f"row-{FAILING_ROW}"
    assert refusal["response"]["status_code"] == 400
    ids = {line["custom_id"] for line in [*answers, refusal]}
    assert ids == {f"row-{n}" for n in range(ROWS)}


async def test_output_is_all_parts_in_order(service: Running) -> None:
    batch = await created(service)
    run_without_ray(service.cluster.only())
    done = await finished(service, batch, "Succeeded")
    rows = await lines_of(service, done.output_file_id)
    assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(ROWS)]
    listed = [each async for each in service.client().files.list(purpose="batch_output")]
    assert [each.id for each in listed] == [done.output_file_id]
    content = await service.client().files.content(str(done.output_file_id))
    assert listed[0].bytes == len(content.content)


async def test_only_committed_parts_count(service: Running) -> None:
    batch = await created(service)
    run_without_ray(service.cluster.only())
    done = await finished(service, batch, "Succeeded")
    before = await lines_of(service, done.output_file_id)
    part = next(output_of(service, batch).glob("part-*"))
    part.with_name(part.name[:-12] + "stray.jsonl").write_text(request_line(7))
    assert await lines_of(service, done.output_file_id) == before


async def test_deleted_output_leaves_the_batch(service: Running) -> None:
    batch = await created(service)
    run_without_ray(service.cluster.only())
    done = await finished(service, batch, "Succeeded")
    client = service.client()
    await client.files.delete(str(done.output_file_id))
    with pytest.raises(openai.NotFoundError):
        await client.files.content(str(done.output_file_id))
    assert (await client.batches.retrieve(batch.id)).status == "completed"


@pytest.mark.parametrize(("phase", "status"), [("Suspended", "cancelled"), ("Failed", "expired")])
async def test_an_unfinished_batch_keeps_its_finished_lines(
    service: Running, phase: str, status: str
) -> None:
    batch = await created(service, "failing")
    assert run_without_ray(service.cluster.only()).state == JobState.FAILED
    if phase == "Suspended":
        await service.client().batches.cancel(batch.id)
    done = await finished(service, batch, phase, FAILING_ROW)
    assert done.status == status
    rows = await lines_of(service, done.output_file_id)
    assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(FAILING_ROW)]
    for _ in range(2):
        others = await lines_of(service, done.error_file_id)
        assert [row["custom_id"] for row in others] == [
            f"row-{n}" for n in range(FAILING_ROW, ROWS)
        ]
        assert {row["error"]["code"] for row in others} == {f"batch_{status}"}
        assert {row["response"] for row in others} == {None}


async def test_a_batch_that_expired_before_it_began_has_errors_for_all_lines(
    service: Running,
) -> None:
    batch = await created(service)
    done = await finished(service, batch, "Failed", 0)
    others = await lines_of(service, done.error_file_id)
    assert [row["custom_id"] for row in others] == [f"row-{n}" for n in range(ROWS)]
    assert done.output_file_id is None


@pytest.mark.parametrize("listed_first", [True, False])
async def test_an_expired_file_is_kept_until_its_lines_that_did_not_run_are_errors(
    listed_first: bool, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = {"anchor": "created_at", "seconds": 3600}
    given = await service.upload(requests(ROWS), expires_after=expires)
    batch = await service.client().batches.create(**given)
    now = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    done = await finished(service, batch, "Failed", 0)
    inputs = service.client().files.list(purpose="batch")
    if listed_first:
        assert [each.id async for each in inputs] == []
    assert len(await lines_of(service, done.error_file_id)) == ROWS
    assert [each.id async for each in inputs] == []
    assert not any(batch.input_file_id in path for path in service.objects())


async def test_failed_lines_are_kept_without_the_input_file(service: Running) -> None:
    batch = await created(service, "failing")
    service.cluster.only()["spec"]["errors"] = {"maxRows": 1}
    run_without_ray(service.cluster.only())
    (output_of(service, batch) / ERROR_FILE).unlink()  # as if the last commit lacked
    done = await finished(service, batch, "Failed", ROWS - 1)
    await service.client().files.delete(batch.input_file_id)
    (failed,) = await lines_of(service, done.error_file_id)
    assert failed["custom_id"] == f"row-{FAILING_ROW}"


async def test_error_file_of_an_expired_batch_is_listed_before_it_is_read(service: Running) -> None:
    batch = await created(service)
    done = await finished(service, batch, "Failed", 0)
    listed = [each.id async for each in service.client().files.list(purpose="batch_output")]
    assert listed == [done.error_file_id]


async def test_deleted_error_file_of_an_expired_batch_is_not_written_again(
    service: Running,
) -> None:
    batch = await created(service)
    done = await finished(service, batch, "Failed", 0)
    client = service.client()
    assert (await client.files.delete(str(done.error_file_id))).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.content(str(done.error_file_id))
    with pytest.raises(openai.NotFoundError):
        await client.files.delete(str(done.error_file_id))
    assert [each async for each in client.files.list(purpose="batch_output")] == []


async def test_a_state_that_would_fill_the_memory_is_not_read(service: Running) -> None:
    batch = await created(service)
    run_without_ray(service.cluster.only())
    done = await finished(service, batch, "Succeeded")
    (report,) = service.root.rglob("report.json")
    os.truncate(report, MAX_STATE)  # the file needs no space on the disk
    with pytest.raises(openai.PermissionDeniedError):
        await service.client().files.content(str(done.output_file_id))
    listed = [each.purpose async for each in service.client().files.list()]
    assert listed == ["batch"]


async def test_no_other_batch_is_read_by_a_changed_job(service: Running) -> None:
    """A tenant may change the objects of its namespace, but not what the service reads."""
    batch = await created(service)
    service.cluster.only()["spec"]["write"]["path"] = str(service.root / "team-b/batches/x")
    done = await finished(service, batch, "Succeeded")
    with pytest.raises(openai.NotFoundError):
        await service.client().files.content(str(done.output_file_id))


@pytest.mark.parametrize("record", ["", "{", "[]", '{"input_file_id": 1}'])
async def test_a_changed_record_is_no_batch(service: Running, record: str) -> None:
    batch = await created(service)
    service.cluster.only()["metadata"]["annotations"] = {"batchinference.dev/batch": record}
    with pytest.raises(openai.NotFoundError):
        await service.client().batches.retrieve(batch.id)
    assert [each async for each in service.client().batches.list()] == []
