"""The status of a job as the operator writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from batchinference.spec.status import BatchInferenceStatus
from support.documents.yaml_files import read_yaml

STATUSES = read_yaml(Path(__file__).with_name("statuses.yaml"))
SMALLEST, FULL = STATUSES["smallest"], STATUSES["full"]
CONDITION, ATTEMPT = FULL["conditions"][0], FULL["attempts"][0]


def read(value: dict[str, Any]) -> BatchInferenceStatus:
    """Parse a status as the API server returns it."""
    return BatchInferenceStatus.model_validate(value, strict=False)


@pytest.mark.parametrize("value", STATUSES.values(), ids=STATUSES)
def test_status_survives_a_round_trip(value: dict[str, Any]) -> None:
    assert read(value).model_dump(mode="json", by_alias=True, exclude_unset=True) == value


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
