"""Profiles of the platform under those of a job: filled in by name, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import effective
from batchinference.spec.cluster import Cluster
from support.documents.minimal import Document, model_step
from support.documents.parsed import job
from support.operator.rendered import render

PLATFORM = {
    "image": "platform:1",
    "profiles": {
        "T4": {
            "nodeSelector": {"gpu": "t4", "zone": "a"},
            "tolerations": [{"key": "t4"}],
            "env": [{"name": "A", "value": "platform"}, {"name": "B", "value": "platform"}],
        },
        "A100": {"nodeSelector": {"gpu": "a100"}},
    },
}


def merged(**profiles: Document) -> dict[str, Any]:
    made = effective(job(cluster={"profiles": profiles}), Cluster.model_validate(PLATFORM))
    dumped: dict[str, Any] = made.spec.cluster.model_dump(
        by_alias=True, exclude_defaults=True, exclude_none=True
    )
    return dumped["profiles"]


def test_a_job_has_the_profiles_of_the_platform() -> None:
    assert merged() == PLATFORM["profiles"]


def test_a_job_adds_profiles_of_its_own() -> None:
    assert merged(XPU={"device": "xpu"}) == {**PLATFORM["profiles"], "XPU": {"device": "xpu"}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {}),
        ({"nodeSelector": {"zone": "b"}}, {"nodeSelector": {"gpu": "t4", "zone": "b"}}),
        ({"tolerations": [{"key": "own"}]}, {"tolerations": [{"key": "own"}]}),
        ({"resource": "a/b"}, {"resource": "a/b"}),
        (
            {"env": [{"name": "B", "value": "own"}]},
            {"env": [{"name": "A", "value": "platform"}, {"name": "B", "value": "own"}]},
        ),
    ],
    ids=["nothing", "a label", "tolerations", "a resource", "a variable"],
)
def test_a_job_changes_single_fields_of_a_profile(own: Document, expected: Document) -> None:
    platform: Any = PLATFORM["profiles"]
    made = merged(T4=own)
    assert made["T4"] == {**platform["T4"], **expected}
    assert made["A100"] == platform["A100"]


def test_a_job_that_names_no_profile_runs_by_those_of_the_platform() -> None:
    step = model_step(resources={"gpu": 1, "acceleratorType": "A100"})
    made = render(job(steps=[step]), Cluster.model_validate(PLATFORM))
    pod = made.workers["embed"]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "a100"}
    assert "profiles" in made.config_map["data"]["job.yaml"]
