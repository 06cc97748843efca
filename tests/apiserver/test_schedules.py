"""Schedules on a real API server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.overdue_schedule import SCHEDULE, create_overdue, status_of
from support.cluster.kubectl import eventually
from support.documents.minimal import document, schedule_document
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob
from support.servers.api_server import TABLE, Namespace, refusal
from support.servers.dashboard import Dashboard

TEMPLATE = {
    "spec": document(
        parameters=[{"name": "year"}],
        write={"format": "parquet", "path": "s3://out/{{ params.year }}", "mode": "append"},
    )["spec"]
}


def test_overdue_run_is_created_once_and_its_end_is_recorded(
    operator: OperatorProcess, namespace: Namespace, dashboard: Dashboard
) -> None:
    name = create_overdue(namespace, template=TEMPLATE)
    new_year = datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC)
    assert name == f"nightly-{int(new_year.timestamp()) // 60}"
    status = status_of(namespace)
    assert status["missedRuns"] == new_year.year - 2021
    assert status["lastScheduleTime"] == status["checkedUntil"] == f"{new_year:%Y}-01-01T00:00:00Z"
    shown = printed(namespace)
    assert (shown["Schedule"], shown["Time Zone"], shown["Suspend"]) == ("0 0 1 1 *", "UTC", False)
    assert shown["Active"] == f'["{name}"]'
    assert shown["Next Schedule"] == f"{new_year.year + 1}-01-01T00:00:00Z"
    body = namespace.get("BatchInference", name)
    (parameter,) = body["spec"]["parameters"]
    assert (parameter["name"], parameter["value"]) == ("year", str(new_year.year))
    (owner,) = body["metadata"]["ownerReferences"]
    assert owner["uid"] == namespace.get(SCHEDULE, "nightly")["metadata"]["uid"]
    simulated = SimulatedJob(namespace, name, dashboard)
    assert f"path: s3://out/{new_year.year}" in simulated.config_map["data"]["job.yaml"]
    operator.kill()
    operator.start()
    simulated.succeed()
    ended = eventually("the end", lambda: status_of(namespace).get("lastSuccessfulTime"), 30, 0.1)
    assert status_of(namespace)["active"] == []
    assert ended == namespace.get("BatchInference", name)["status"]["completionTime"]
    assert [run["metadata"]["name"] for run in namespace.list("BatchInference")] == [name]
    reasons = {event["reason"] for event in namespace.list("Event")
               if event["involvedObject"]["kind"] == SCHEDULE}  # fmt: skip
    assert reasons == {"RunCreated", "RunsMissed"}


def printed(namespace: Namespace) -> dict[str, Any]:
    """Return the columns that kubectl prints for the schedule."""
    table = namespace.server.call(
        "GET", namespace.path(SCHEDULE, "nightly"), headers={"Accept": TABLE}
    )
    names = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(names, table["rows"][0]["cells"], strict=True))


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "four fields": ({"schedule": "0 0 * *"}, "spec.schedule"),
    "a time zone in the schedule": ({"schedule": "TZ=UTC 0 0 * * *"}, "spec.schedule"),
    "a path": ({"timeZone": "../etc/passwd"}, "spec.timeZone"),
    "an unknown policy": ({"concurrencyPolicy": "Never"}, "spec.concurrencyPolicy"),
    "a negative limit": ({"failedRunsHistoryLimit": -1}, "spec.failedRunsHistoryLimit"),
    "an unknown field": ({"cron": "x"}, "spec.cron"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_schedule_is_refused(module_namespace: Namespace, case: str) -> None:
    spec, field = MALFORMED[case]
    result = refusal(module_namespace, schedule_document(**spec))
    assert result is not None
    assert field in result


def test_name_leaves_space_for_the_time_and_the_template_can_be_changed(
    namespace: Namespace,
) -> None:
    assert "at most 31" in (refusal(namespace, schedule_document("a" * 32)) or "")
    namespace.create(schedule_document("a" * 31, template=TEMPLATE))
    other = document(read={"format": "text", "paths": ["s3://other/"]})["spec"]
    namespace.patch(SCHEDULE, "a" * 31, {"spec": {"template": {"spec": other}}})
