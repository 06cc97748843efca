"""The profiles of a job and of the platform are merged by name, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import with_platform_defaults
from batchinference.spec.cluster import Cluster
from support.documents.minimal import Document, model_step
from support.documents.parsed import job
from support.operator.rendered import render

PLATFORM: dict[str, Any] = {
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
    made = with_platform_defaults(
        job(cluster={"profiles": profiles}), Cluster.model_validate(PLATFORM)
    )
    dumped: dict[str, Any] = made.spec.cluster.model_dump(
        by_alias=True, exclude_defaults=True, exclude_none=True
    )
    return dumped["profiles"]


def test_profiles_of_the_platform_are_extended_by_the_job() -> None:
    assert merged() == PLATFORM["profiles"]
    assert merged(XPU={"device": "xpu"}) == {**PLATFORM["profiles"], "XPU": {"device": "xpu"}}


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
def test_profile_of_the_job_overrides_single_fields(own: Document, expected: Document) -> None:
    platform = PLATFORM["profiles"]
    made = merged(T4=own)
    assert made["T4"] == {**platform["T4"], **expected}
    assert made["A100"] == platform["A100"]


def test_profiles_of_the_platform_apply_to_a_job_without_profiles() -> None:
    step = model_step(resources={"gpu": 1, "acceleratorType": "A100"})
    made = render(job(steps=[step]), Cluster.model_validate(PLATFORM))
    pod = made.workers["embed"]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "a100"}
    assert "profiles" in made.config_map["data"]["job.yaml"]
