"""The status of a job as the operator writes it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from batchinference.spec.status import BatchInferenceStatus, Phase

TIME = "2026-01-02T03:04:05Z"
CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Running",
    "message": "70 of 100 rows",
    "lastTransitionTime": TIME,
    "observedGeneration": 1,
}
ATTEMPT = {
    "number": 1,
    "rayJobName": "job-1",
    "startTime": TIME,
    "completionTime": TIME,
    "outcome": "Failed",
    "cause": "NodeLost",
    "message": "node-2 was drained",
    "rows": 40,
    "deviceSeconds": 300,
    "cpuSeconds": 600,
}
SMALLEST: dict[str, Any] = {"phase": "Pending", "observedGeneration": 1, "conditions": []}
FULL: dict[str, Any] = {
    "phase": "Running",
    "observedGeneration": 2,
    "conditions": [CONDITION],
    "progress": {
        "rows": 70,
        "total": 100,
        "estimated": True,
        "percent": 70,
        "rowsPerSecond": 1.5,
        "eta": "20s",
    },
    "counts": {"read": 70, "written": 60, "failed": 4, "filtered": 6},
    "startTime": TIME,
    "completionTime": TIME,
    "attempt": 2,
    "failedAttempts": 1,
    "nextAttemptTime": TIME,
    "attempts": [ATTEMPT, {"number": 2, "rayJobName": "job-2"}],
    "operator": {"suspendedSeconds": 60, "progressTime": TIME, "usageTime": TIME},
    "deviceSeconds": 500,
    "cpuSeconds": 900,
    "rayJobName": "job-2",
    "rayClusterName": "job-2-abcde",
    "output": "s3://out/",
}


def read(value: dict[str, Any]) -> BatchInferenceStatus:
    """Parse a status as the API server returns it."""
    return BatchInferenceStatus.model_validate(value, strict=False)


@pytest.mark.parametrize("value", [SMALLEST, FULL], ids=["smallest", "full"])
def test_status_survives_a_round_trip(value: dict[str, Any]) -> None:
    assert read(value).model_dump(mode="json", by_alias=True, exclude_unset=True) == value


def test_status_phases() -> None:
    assert [phase.value for phase in Phase] == [
        *("Pending", "Planning", "Starting", "Running", "Finalizing", "Succeeded", "Failed"),
        *("Suspending", "Suspended", "Retrying"),
    ]


@pytest.mark.parametrize("field", CONDITION)
def test_condition_requires_all_fields_of_kubernetes(field: str) -> None:
    without = {key: value for key, value in CONDITION.items() if key != field}
    with pytest.raises(ValidationError, match=field):
        read({**SMALLEST, "conditions": [without]})


@pytest.mark.parametrize(
    "fields",
    [
        {"phase": "Sleeping"},
        {"progress": {"rows": -1}},
        {"progress": {"rows": 1, "percent": 101}},
        {"progress": {"rows": 1, "percent": -1}},
        {"counts": {"read": 1, "written": 1, "failed": -1, "filtered": 0}},
        {"conditions": [{**CONDITION, "status": "Maybe"}]},
        {"conditions": [CONDITION] * 9},
        {"attempts": [{"number": 0, "rayJobName": "job-0"}]},
        {"attempts": [{**ATTEMPT, "outcome": "Gone"}]},
        {"attempts": [{**ATTEMPT, "cause": "BadLuck"}]},
        {"attempts": [ATTEMPT] * 21},
        {"budget": 1},
    ],
    ids=str,
)
def test_status_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read({**SMALLEST, **fields})
