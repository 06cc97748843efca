"""What a reconcile of a BatchInferenceSchedule does, case by case."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batchinference.spec.job import SCHEDULE_KIND
from batchinference.spec.schedule import SCHEDULE_LABEL
from batchinference_operator.kube.api_errors import Conflict, Refused
from batchinference_operator.reconcile.job_view import SKIPPED_FIELDS
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.operator.fake_cluster import labels_of
from support.operator.objects import NAMESPACE, job_body
from support.operator.schedules import Schedules

START = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
FIRST, SECOND, THIRD = (f"nightly-{int((START + n * HOUR).timestamp()) // 60}" for n in (1, 2, 3))


def started(**spec: Any) -> Schedules:
    """Return an hourly schedule with one run, the run of 13:00."""
    schedules = Schedules(START, **spec)
    schedules.reconcile()
    schedules.reconcile(START + HOUR)
    assert schedules.created == [FIRST]
    schedules.events()
    return schedules


def test_run_is_owned_and_named_after_its_scheduled_time() -> None:
    template = {
        "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "x"}},
        "spec": {
            **document()["spec"],
            "parameters": [{"name": "date"}, {"name": "hour", "value": "7"}, {"name": "timestamp"}],
            "write": {"format": "parquet", "path": "s3://out/{{ params.date }}"},
        },
    }
    schedules = started(timeZone="Asia/Tokyo", template=template)
    body = schedules.cluster.objects["BatchInference", FIRST]
    assert body["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "batchinference.dev/v1beta1",
            "kind": SCHEDULE_KIND,
            "name": "nightly",
            "uid": schedules.cluster.objects[SCHEDULE_KIND, "nightly"]["metadata"]["uid"],
            "controller": True,
        }
    ]
    assert labels_of(body) == {"team": "vision", "batchinference.dev/schedule": "nightly"}
    assert body["metadata"]["annotations"] == {
        "note": "x",
        "batchinference.dev/scheduled-time": "2026-03-01T22:00:00+09:00",
    }
    assert body["spec"] == {
        **template["spec"],
        "parameters": [
            {"name": "date", "value": "2026-03-01"},
            {"name": "hour", "value": "7"},
            {"name": "timestamp", "value": "2026-03-01T22:00:00+09:00"},
        ],
    }


def test_status_of_a_schedule() -> None:
    schedules = Schedules(START)
    status = schedules.reconcile()
    assert status["nextScheduleTime"] == "2026-03-01T13:00:00Z"
    assert "lastScheduleTime" not in status
    schedules.reconcile(START + HOUR)
    assert schedules.events() == [("RunCreated", f"created {FIRST}")]
    schedules.finish(FIRST, at="2026-03-01T13:20:00Z")
    status = schedules.reconcile()
    assert {name: value for name, value in status.items() if name != "conditions"} == {
        "observedGeneration": 1,
        "active": [],
        "checkedUntil": "2026-03-01T13:00:00Z",
        "lastScheduleTime": "2026-03-01T13:00:00Z",
        "lastSuccessfulTime": "2026-03-01T13:20:00Z",
        "missedRuns": 0,
        "nextScheduleTime": "2026-03-01T14:00:00Z",
        "observedSchedule": "0 * * * * UTC",
    }
    assert schedules.ready[:2] == ("True", "Scheduled")


INVALID: dict[str, Document] = {
    "cron": {"schedule": "61 * * * *"},
    "six fields": {"schedule": "0 0 * * * *"},
    "no such day": {"schedule": "0 0 30 2 *"},
    "zone": {"timeZone": "Europe/Bonn"},
    "directory of zones": {"timeZone": "Europe"},
    "template": {"template": {"spec": {"read": {"format": "text", "paths": ["s3://a"]}}}},
    "misspelled field": {"template": {"spec": {**document()["spec"], "cluster": {"iamge": "x"}}}},
    "secret": {
        "template": {
            "spec": document(read={"format": "text", "paths": ["s3://a:hunter2@b/"]})["spec"]
        }
    },
    "parameter": {
        "template": {
            "spec": document(
                read={"format": "text", "paths": ["{{ params.a }}"]}, parameters=[{"name": "a"}]
            )["spec"]
        }
    },
}


@pytest.mark.parametrize("wrong", INVALID.values(), ids=INVALID)
def test_invalid_schedule_creates_nothing_until_it_is_corrected(
    wrong: Document, messages: Messages
) -> None:
    schedules = started()
    valid = schedules.cluster.objects[SCHEDULE_KIND, "nightly"]["spec"]
    schedules.patch(**wrong)
    status = schedules.reconcile(START + 2 * HOUR)
    *state, message = schedules.ready
    assert state == ["False", "InvalidSpec"]
    messages.check(message)
    assert "nextScheduleTime" not in status
    assert schedules.events() == [("InvalidSpec", message)]
    schedules.reconcile()
    assert schedules.events() == []
    schedules.patch(**{"timeZone": "UTC", **valid}, concurrencyPolicy="Allow")
    schedules.reconcile()
    assert schedules.created == [FIRST, SECOND]
    assert schedules.ready[:2] == ("True", "Scheduled")


def test_incompletely_read_schedule_is_invalid(messages: Messages) -> None:
    schedules = started()
    schedules.cluster.patch(
        SCHEDULE_KIND, "nightly", {SKIPPED_FIELDS: {"spec": "spec: it is too large"}}
    )
    schedules.reconcile(START + 2 * HOUR)
    messages.check(schedules.ready)
    assert schedules.created == [FIRST]


def test_only_the_last_missed_time_runs_and_the_others_are_counted(messages: Messages) -> None:
    schedules = started(concurrencyPolicy="Allow")
    status = schedules.reconcile(START + 3 * HOUR)
    assert schedules.created == [FIRST, THIRD]
    assert status["missedRuns"] == 1
    messages.check(schedules.events())


def test_time_beyond_the_deadline_is_missed() -> None:
    schedules = started(concurrencyPolicy="Allow", startingDeadline="60s")
    status = schedules.reconcile(START + 3 * HOUR + timedelta(seconds=31))
    assert schedules.created == [FIRST]
    assert status["missedRuns"] == 2
    late = "61 s late, with startingDeadline 60s"
    note = f"missed 2 scheduled time(s) up to 2026-03-01T15:00:00Z: {late}"
    assert schedules.events() == [("RunsMissed", note)]
    assert schedules.reconcile()["missedRuns"] == 2
    assert schedules.events() == []


def test_forbid_waits_for_the_active_run_and_reports_it_once() -> None:
    schedules = started()
    schedules.reconcile(START + 2 * HOUR)
    message = f"2026-03-01T14:00:00Z waits for {FIRST} (concurrencyPolicy Forbid)"
    assert schedules.ready == ("True", "RunActive", message)
    schedules.reconcile()
    assert schedules.events() == [("RunActive", message)]
    schedules.finish(FIRST)
    schedules.reconcile()
    assert schedules.created == [FIRST, SECOND]


def test_replace_deletes_the_active_run_after_the_next_one_is_created() -> None:
    schedules = started(concurrencyPolicy="Replace")
    status = schedules.reconcile(START + 2 * HOUR)
    assert schedules.runs == status["active"] == [SECOND]


def test_suspended_schedule_runs_the_last_time_when_it_is_resumed() -> None:
    schedules = started(concurrencyPolicy="Allow")
    schedules.patch(suspend=True)
    status = schedules.reconcile(START + 3 * HOUR)
    assert schedules.created == [FIRST]
    assert schedules.ready[:2] == ("True", "Suspended")
    assert "nextScheduleTime" not in status
    assert schedules.events() == []
    schedules.patch(suspend=False)
    schedules.reconcile()
    assert schedules.created == [FIRST, THIRD]


def test_finished_runs_beyond_the_limits_are_deleted() -> None:
    schedules = Schedules(START, successfulRunsHistoryLimit=1, failedRunsHistoryLimit=0)
    for number, end in enumerate(["Complete", "Failed", "Complete", "Complete"], start=1):
        schedules.reconcile(START + number * HOUR)
        schedules.finish(schedules.created[-1], end, at=f"2026-03-01T1{2 + number}:10:00Z")
        schedules.reconcile()
    assert len(schedules.created) == 4
    assert schedules.runs == schedules.created[-1:]
    assert schedules.status["lastSuccessfulTime"] == "2026-03-01T16:10:00Z"


def test_run_is_not_deleted_before_its_notifications() -> None:
    schedules = started(successfulRunsHistoryLimit=0)
    notifications = [{"name": "chat", "urlEnv": "URL"}]
    schedules.cluster.patch("BatchInference", FIRST, {"spec": {"notifications": notifications}})
    schedules.finish(FIRST)
    schedules.reconcile()
    assert schedules.runs == [FIRST]
    body = schedules.cluster.objects["BatchInference", FIRST]
    schedules.controller.handle_event(body)
    queue = schedules.controller.queue = type(schedules.controller.queue)()
    body["status"]["conditions"].append({"type": "Notified", "status": "True"})
    schedules.controller.handle_event(body)
    assert len(queue) == 1
    schedules.reconcile()
    assert schedules.runs == []


def test_no_scheduled_time_runs_twice_when_the_clock_goes_back() -> None:
    schedules = started()
    schedules.finish(FIRST)
    schedules.cluster.delete("BatchInference", FIRST)
    schedules.reconcile(START + timedelta(minutes=59, seconds=20))
    assert schedules.ready[:2] == ("True", "Scheduled")
    schedules.reconcile(START)
    assert schedules.ready[:2] == ("False", "ClockBehind")
    schedules.reconcile(START + HOUR)
    assert schedules.created == [FIRST]
    schedules.reconcile(START + 2 * HOUR)
    assert schedules.created == [FIRST, SECOND]


def test_changed_schedule_starts_at_the_change() -> None:
    schedules = started(concurrencyPolicy="Allow")
    schedules.patch(schedule="5 * * * *")
    status = schedules.reconcile(START + 2 * HOUR)
    assert (schedules.created, status["missedRuns"]) == ([FIRST], 0)
    assert status["nextScheduleTime"] == "2026-03-01T14:05:00Z"


def test_name_of_another_job_is_missed_and_reported(messages: Messages) -> None:
    schedules = started(concurrencyPolicy="Allow")
    schedules.cluster.apply(SECOND)
    status = schedules.reconcile(START + 2 * HOUR)
    assert (status["missedRuns"], status["active"]) == (1, [FIRST])
    messages.check(schedules.events()[0][1])


def test_refused_run_is_reported_and_retried() -> None:
    schedules = started(concurrencyPolicy="Allow")

    def refuse(call: str) -> None:
        if call == "create BatchInference":
            raise Refused("exceeded quota")

    schedules.api.before = refuse
    with pytest.raises(Refused):
        schedules.reconcile(START + 2 * HOUR)
    assert schedules.ready == ("False", "Refused", "exceeded quota")
    schedules.api.before = lambda _: None
    schedules.reconcile()
    assert schedules.created == [FIRST, SECOND]
    assert schedules.ready[:2] == ("True", "Scheduled")


def test_runs_of_another_owner_do_not_count() -> None:
    schedules = started()
    body = schedules.cluster.objects["BatchInference", FIRST]
    schedules.cluster.put({**body, "metadata": {**body["metadata"], "ownerReferences": []}})
    assert schedules.reconcile()["active"] == []


def test_foreign_objects_with_the_label_hide_no_run() -> None:
    schedules = Schedules(START, concurrencyPolicy="Forbid")
    for number in range(3):
        foreign = job_body(f"a-{number}", labels={SCHEDULE_LABEL: "nightly"})
        schedules.cluster.put(foreign)
    for hours in range(3):
        schedules.reconcile(START + hours * HOUR)
    assert schedules.runs[3:] == schedules.status["active"] == [FIRST]


@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
def test_no_run_is_created_while_not_all_can_be_listed(policy: str, messages: Messages) -> None:
    """A run that is not listed may be active, and must neither be missed nor start twice."""
    schedules = started(concurrencyPolicy=policy)
    schedules.controller.max_runs = 1
    with messages.raises(Refused):
        schedules.reconcile(START + 2 * HOUR)
    assert (schedules.created, schedules.status["missedRuns"]) == ([FIRST], 0)
    schedules.finish(FIRST)
    schedules.controller.max_runs = 2
    schedules.reconcile(START + 2 * HOUR)
    assert schedules.created == [FIRST, SECOND]


def test_run_that_appears_with_too_many_others_is_not_missed(messages: Messages) -> None:
    schedules = started(concurrencyPolicy="Allow")

    def fill(call: str) -> None:
        if call == "create BatchInference":
            schedules.api.before = lambda _: None
            schedules.cluster.apply(SECOND)
            schedules.controller.max_runs = 1

    schedules.api.before = fill
    with messages.raises(Refused):
        schedules.reconcile(START + 2 * HOUR)
    assert schedules.status["missedRuns"] == 0


def test_one_run_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Body(dict[str, Any]):
        pass

    schedules, listed, alive = started(), list[weakref.ref[Body]](), list[int]()
    body = schedules.cluster.objects["BatchInference", FIRST]

    async def list_runs(*_: Any) -> AsyncIterator[dict[str, Any]]:
        for _number in range(100):
            one = Body(body)
            listed.append(weakref.ref(one))
            alive.append(sum(result() is not None for result in listed))
            yield one

    monkeypatch.setattr(schedules.api, "list_runs", list_runs)
    assert len(schedules.reconcile()["active"]) == 100
    assert max(alive) <= 3


def test_schedule_that_is_being_deleted_or_gone_creates_nothing() -> None:
    schedules = started(concurrencyPolicy="Allow")
    mark = {"metadata": {"deletionTimestamp": "2026-03-01T13:30:00Z"}}
    schedules.cluster.patch(SCHEDULE_KIND, "nightly", mark)
    schedules.reconcile(START + 2 * HOUR)
    assert schedules.created == [FIRST]
    schedules.cluster.delete(SCHEDULE_KIND, "nightly")
    with pytest.raises(KeyError):
        schedules.reconcile()
    assert schedules.created == [FIRST]


def test_stale_status_is_not_overwritten() -> None:
    schedules = started(concurrencyPolicy="Allow")

    def change(call: str) -> None:
        if call == "patch status":
            schedules.api.before = lambda _: None
            schedules.patch(suspend=True)

    schedules.api.before = change
    with pytest.raises(Conflict):
        schedules.reconcile(START + 2 * HOUR)
    schedules.reconcile()
    assert schedules.status["lastScheduleTime"] == "2026-03-01T13:00:00Z"


def test_events_that_change_nothing_need_no_reconcile() -> None:
    schedules = started()
    queue, job = schedules.controller.queue, schedules.cluster.objects["BatchInference", FIRST]
    schedule = schedules.cluster.objects[SCHEDULE_KIND, "nightly"]
    other = {**job, "metadata": {**job["metadata"], "labels": {}}}
    finished = {**job, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    expected = [(schedule, 1), (schedule, 0), (job, 1), (job, 0), (other, 0), (finished, 1)]
    queued = []
    for body, _ in expected:
        schedules.controller.handle_event(body)
        queued.append((body, len(queue)))
        while len(queue):
            schedules.controller.queue = queue = type(queue)(lambda key: key[0])
    assert [count for _, count in queued] == [count for _, count in expected]
    schedules.controller.handle_event(job, deleted=True)
    assert queue.is_queued((NAMESPACE, "nightly"))
