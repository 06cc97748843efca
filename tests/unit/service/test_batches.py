"""Batches, as the unmodified client of OpenAI uses them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest

from support.service.cluster import losing_answers
from support.service.running import ENDPOINT, Running, request_line, requests

DONE = "2026-01-01T01:00:00Z"


def condition(kind: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": "m",
            "lastTransitionTime": DONE}  # fmt: skip


async def test_a_batch_is_a_job_over_the_file_with_a_deadline(service: Running) -> None:
    batch = await service.create(metadata={"team": "x"})
    job = service.cluster.only()
    assert job["metadata"]["name"].replace("-", "_") == batch.id
    (path,) = job["spec"]["read"]["paths"]
    assert open(path, "rb").read() == requests(2)  # noqa: ASYNC230, SIM115
    assert job["spec"]["write"]["path"].startswith(f"{service.root}/team-a/batches/")
    assert job["spec"]["deadlines"] == {"total": "24h"}
    assert (batch.status, batch.metadata, batch.model) == ("validating", {"team": "x"}, "small")
    assert (batch.request_counts and batch.request_counts.total) == 2
    assert batch.expires_at == batch.created_at + 24 * 3600
    assert service.cluster.authorizations == ["Bearer token-of-the-pod"]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"phase": "Pending"}, "in_progress"),
        ({"phase": "Running"}, "in_progress"),
        ({"phase": "Retrying"}, "in_progress"),
        ({"phase": "Suspended"}, "in_progress"),
        ({"phase": "Finalizing"}, "finalizing"),
        ({"phase": "Succeeded", "completionTime": DONE}, "completed"),
        ({"phase": "Failed", "conditions": [condition("Failed", "BadInput")]}, "failed"),
        ({"phase": "Failed", "conditions": [condition("Failed", "DeadlineExceeded")]}, "expired"),
        ({"phase": "ANewPhase"}, "in_progress"),
    ],
)
async def test_status_follows_the_phase_of_the_job(
    service: Running, status: dict[str, Any], shown: str
) -> None:
    batch = await service.create()
    service.cluster.set_status({**status, "counts": {"read": 2, "written": 1, "failed": 1}})
    result = await service.client().batches.retrieve(batch.id)
    assert result.status == shown
    assert result.request_counts is not None
    assert (result.request_counts.completed, result.request_counts.failed) == (1, 1)
    assert bool(result.output_file_id) == (shown in ("completed", "failed", "expired"))
    assert bool(result.errors) == (shown == "failed")
    ended = {
        "completed": result.completed_at,
        "failed": result.failed_at,
        "expired": result.expired_at,
    }
    assert {name for name, time in ended.items() if time} == {shown} & ended.keys()


async def test_cancelling_suspends_the_job_and_keeps_what_is_finished(service: Running) -> None:
    batches = service.client().batches
    batch = await service.create()
    service.cluster.set_status({"phase": "Running"})
    assert (await batches.cancel(batch.id)).status == "cancelling"
    assert service.cluster.only()["spec"]["suspend"] is True
    assert (await batches.cancel(batch.id)).status == "cancelling"
    conditions = [condition("Suspended", "Suspended")]
    service.cluster.set_status(
        {"phase": "Suspended", "counts": {"written": 1}, "conditions": conditions}
    )
    result = await batches.retrieve(batch.id)
    assert (result.status, bool(result.output_file_id)) == ("cancelled", True)
    assert result.cancelling_at
    assert result.cancelled_at
    with pytest.raises(openai.ConflictError):
        await batches.cancel(batch.id)


async def test_a_change_at_the_same_time_is_a_conflict(service: Running) -> None:
    batch = await service.create()
    service.cluster.has_conflict = True
    with pytest.raises(openai.ConflictError):
        await service.client().batches.cancel(batch.id)


async def test_an_endpoint_of_azure_has_no_version(service: Running) -> None:
    batch = await service.create(endpoint="/chat/completions")
    assert (batch.endpoint, batch.errors) == (ENDPOINT, None)


async def test_pages_list_the_batches_once(service: Running) -> None:
    made = [(await service.create()).id for _ in range(7)]
    service.cluster.lists = 0
    assert [each.id async for each in service.client().batches.list(limit=2)] == made[::-1]
    assert service.cluster.lists == 4, "as many requests as for one list"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "invalid_json_line"),
        ("[1]", "invalid_json_line"),
        ('{"custom_id": NaN}', "invalid_json_line"),
        ("[" * 100_000, "invalid_json_line"),
        ("\xff".encode("latin-1"), "invalid_json_line"),
        (request_line(0), "duplicate_custom_id"),
        (request_line(1, custom_id=7), "missing_required_parameter"),
        (request_line(1, method="GET"), "invalid_method"),
        (request_line(1, url="/v1/images"), "invalid_url"),
        (request_line(1, url=["/v1/images"]), "invalid_url"),
        (request_line(1, url="/v1/embeddings"), "mismatched_url"),
        (request_line(1, body={}), "missing_required_parameter"),
        (request_line(1, body=None), "missing_required_parameter"),
        (request_line(1, body={"model": "large"}), "mismatched_model"),
        (request_line(1, body={"model": "x" * 300}), "missing_required_parameter"),
    ],
)
async def test_an_invalid_line_fails_the_batch(
    service: Running, line: str | bytes, code: str
) -> None:
    second = line.encode() if isinstance(line, str) else line
    batch = await service.create(request_line(0).encode() + b"\n\n" + second + b"\n")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [(code, 3)]
    assert service.cluster.only()["spec"]["managedBy"] != "batchinference.dev/operator"


@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        (b"\n \n", {}, "empty_file"),
        (requests(1), {"endpoint": "/v1/embeddings"}, "invalid_url"),
        (request_line(1, body={"model": "large"}).encode(), {}, "model_not_found"),
    ],
)
async def test_a_file_that_does_not_fit_fails_the_batch(
    service: Running, content: bytes, options: dict[str, str], code: str
) -> None:
    batch = await service.create(content, **options)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [error.code for error in batch.errors.data or []] == [code]


async def test_many_errors_are_counted(service: Running) -> None:
    batch = await service.create(b"{\n" * 1000)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert len(batch.errors.data) == 51
    assert "950" in str(batch.errors.data[-1].message)


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": "/v1/images"},
        {"completion_window": "soon"},
        {"metadata": {"k": 1}},
        {"metadata": {str(n): "" for n in range(17)}},
        {"metadata": {"k": "v" * 513}},
        {"extra_body": {"output_expires_after": {"anchor": "created_at", "seconds": 3600}}},
        {"input_file_id": "file-" + 32 * "0"},
        {"input_file_id": "../team-b/files"},
        {"input_file_id": 7},
    ],
)
async def test_an_invalid_request_creates_nothing(
    service: Running, changes: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await service.create(**changes)
    assert refused.value.param in {*changes, "output_expires_after", "metadata.k"}
    assert service.cluster.objects == {}


async def test_a_repeated_request_is_one_batch(service: Running) -> None:
    client, given = service.client(max_retries=2), await service.upload()
    with losing_answers(service.cluster, 1):
        batch = await client.batches.create(**given)
    assert len(service.cluster.objects) == 1
    assert (await client.batches.retrieve(batch.id)).id == batch.id


async def test_an_equal_batch_starts_after_the_first_has_ended(service: Running) -> None:
    client, given = service.client(), await service.upload()
    first = await client.batches.create(**given)
    assert (await client.batches.create(**given)).id == first.id
    other = await client.batches.create(**given, metadata={"run": "2"})
    assert other.id != first.id
    service.cluster.set_status({"phase": "Succeeded"}, first.id.replace("_", "-"))
    second = await client.batches.create(**given)
    assert second.id not in (first.id, other.id)


async def test_a_name_with_an_output_is_not_used_again(service: Running) -> None:
    client, given = service.client(), await service.upload()
    first = await client.batches.create(**given)
    output = service.root / "team-a/batches" / first.id.replace("_", "-")
    output.mkdir(parents=True)
    (output / "part").write_text("rows")
    service.cluster.objects.clear()
    assert (await client.batches.create(**given)).id != first.id


async def test_requests_with_one_idempotency_key_are_one_batch(service: Running) -> None:
    client, given = service.client(), await service.upload()
    key = {"extra_headers": {"Idempotency-Key": "once"}}
    first = await client.batches.create(**given, **key)
    service.cluster.set_status({"phase": "Succeeded"})
    assert (await client.batches.create(**given, **key)).id == first.id


@pytest.mark.parametrize(("minutes", "same"), [(5, True), (120, False)])
async def test_a_repeated_request_returns_a_batch_that_has_just_ended(
    service: Running, minutes: int, same: bool
) -> None:
    service.cluster.now = lambda: datetime.now(UTC) - timedelta(minutes=minutes)
    first = await service.create()
    service.cluster.set_status({"phase": "Succeeded"})
    again = await service.create(
        input_file_id=first.input_file_id, extra_headers={"x-stainless-retry-count": "1"}
    )
    assert (again.id == first.id) == same


async def test_a_refusal_of_the_cluster_is_shown(service: Running) -> None:
    service.cluster.refusal = "spec.priority: higher than 5"
    with pytest.raises(openai.PermissionDeniedError) as refused:
        await service.create()
    assert service.cluster.refusal in str(refused.value)


async def test_a_batch_that_was_resumed_can_be_cancelled_again(service: Running) -> None:
    batches = service.client().batches
    batch = await service.create()
    await batches.cancel(batch.id)
    service.cluster.only()["spec"]["suspend"] = False
    service.cluster.set_status({"phase": "Running"})
    assert (await batches.retrieve(batch.id)).status == "in_progress"
    assert (await batches.cancel(batch.id)).status == "cancelling"
