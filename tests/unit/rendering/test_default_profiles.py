"""The profiles of a job and of the platform are merged by name, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import with_platform_defaults
from batchinference.spec.cluster import Cluster
from batchinference.spec.profiles import OTHER_IMAGES
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
)
def test_profile_of_the_job_overrides_single_fields(own: Document, expected: Document) -> None:
    platform = PLATFORM["profiles"]
    made = merged(T4=own)
    assert made["T4"] == {**platform["T4"], **expected}
    assert made["A100"] == platform["A100"]


@pytest.mark.parametrize(
    ("own", "head", "gpus"),
    [
        ({}, "platform:1", "cuda:1"),
        ({"image": "own:1"}, "own:1", "own:1"),
        ({"profiles": {"GPU": {"image": "vllm:1"}}}, "platform:1", "vllm:1"),
        ({"image": "own:1", "profiles": {"A100": {"image": "own:2"}}}, "own:1", "own:2"),
    ],
)
def test_pods_of_a_device_have_the_image_of_its_profile(
    own: Document, head: str, gpus: str
) -> None:
    """Heads and CPU workers do not pull CUDA. An image of a job may have its code, so no image of
    the platform replaces it."""
    profiles = {**PLATFORM["profiles"], "GPU": {"image": "cuda:1"}}
    step = model_step(resources={"gpu": 1, "acceleratorType": "A100"})
    platform = Cluster.model_validate({**PLATFORM, "profiles": profiles})
    made = render(job(steps=[step], cluster=own), platform)
    images = [pod["spec"]["containers"][0]["image"] for pod in made.pods]
    assert images == [head, head, gpus]
    variables = {one["name"] for one in made.pods[0]["spec"]["containers"][0]["env"]}
    assert (OTHER_IMAGES in variables) == (head != gpus)
