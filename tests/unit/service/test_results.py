"""The files of batches whose jobs have run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from batchinference.spec.report import JobState
from support.jobs.without_ray import run_without_ray
from support.service.running import ENDPOINT, FAILING_ROW, Running, request_line, requests

ROWS = 20


async def created(service: Running, model: str = "small") -> Batch:
    client = service.client()
    content = requests(ROWS, model)
    file = await client.files.create(file=("a.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )


def output_of(service: Running, batch: Batch) -> Path:
    return service.root / "team-a/batches" / batch.id.replace("_", "-")


async def lines_of(service: Running, file: str | None) -> list[Any]:
    assert file is not None
    content = await service.client().files.content(file)
    return [json.loads(line) for line in content.content.splitlines()]


async def finished(service: Running, batch: Batch, phase: str) -> Batch:
    """Return the batch after its job has reached a phase."""
    conditions = [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
    counts = {"written": ROWS, "failed": 1}
    service.cluster.set_status({"phase": phase, "counts": counts, "conditions": conditions})
    return await service.client().batches.retrieve(batch.id)


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
    files = service.client().files
    await files.delete(str(done.output_file_id))
    with pytest.raises(openai.NotFoundError):
        await files.content(str(done.output_file_id))
    assert (await service.client().batches.retrieve(batch.id)).status == "completed"


@pytest.mark.parametrize(("phase", "status"), [("Suspended", "cancelled"), ("Failed", "expired")])
async def test_an_unfinished_batch_keeps_its_finished_lines(
    service: Running, phase: str, status: str
) -> None:
    batch = await created(service, "failing")
    assert run_without_ray(service.cluster.only()).state == JobState.FAILED
    if phase == "Suspended":
        await service.client().batches.cancel(batch.id)
    done = await finished(service, batch, phase)
    assert done.status == status
    rows = await lines_of(service, done.output_file_id)
    assert [row["custom_id"] for row in rows] == [f"row-{n}" for n in range(FAILING_ROW)]


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
