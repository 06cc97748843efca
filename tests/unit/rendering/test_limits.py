"""A job is refused if its worker groups may grow beyond its limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchinference.rendering import DEVICES_LABEL, with_platform_defaults
from batchinference.rendering.limits import check_limits
from batchinference.spec import BatchInference, SpecError
from batchinference.spec.cluster import Cluster, Limits, lower_limits
from plugins.messages import Messages
from support.documents.minimal import Document, model_step
from support.documents.parsed import job
from support.operator.rendered import render

GPUS = model_step("embed", replicas={"max": 4}, resources={"gpu": 2, "cpu": 3})


def problems(steps: list[Document], **cluster: Any) -> list[str]:
    limits = Limits.model_validate(cluster.pop("limits"))
    made = render(job(steps=steps, cluster=cluster)).cluster
    return [str(one) for one in check_limits(limits, made)]


def refused(over: BatchInference) -> str:
    with pytest.raises(SpecError) as caught:
        render(over)
    return str(caught.value)


LONG = [{"name": f"A{number}", "value": "x" * 4000} for number in range(16)]
STEPS = [model_step(f"s{number}", resources={"gpu": 1, "cpu": number}) for number in range(1, 8)]


def test_job_that_is_too_large_for_the_api_server_is_refused() -> None:
    """The API server would answer as if it was down, and each retry would get the same answer."""
    assert "too large" in refused(job(steps=STEPS, cluster={"env": LONG}))
    assert render(job(steps=STEPS[:2], cluster={"env": LONG}))


def test_job_at_its_limits_is_accepted() -> None:
    assert problems([GPUS], limits={"devices": 8, "cpu": 17.0}) == []
    assert problems([], limits={"devices": 0}) == []


def test_gpu_limit_names_the_groups(messages: Messages) -> None:
    steps = [GPUS, model_step("judge", replicas={"max": 3}, resources={"gpu": 1})]
    messages.check(problems(steps, limits={"devices": 10}))


def test_cpu_limit_includes_the_head() -> None:
    (problem,) = problems([GPUS], limits={"cpu": 16.5, "devices": 8}, head={"cpu": 1})
    assert "17 CPUs (head 1 x 1, cpu 2 x 2, embed 4 x 3) and 16.5 are allowed" in problem
    assert "Lower replicas.max or cluster.workers.max" in problem


@pytest.mark.parametrize(
    ("profile", "devices"),
    [
        ({"resource": "nvidia.com/gpu", "device": "cuda"}, 512),
        ({"resource": "nvidia.com/gpu"}, 512),
        ({"device": "cuda"}, 512),
        ({}, 0),
    ],
)
def test_device_limit_includes_the_profiles_of_the_job(profile: Any, devices: int) -> None:
    """A job cannot get GPUs under another name. The GPU label of the pods also counts them."""
    step = model_step(replicas={"max": 64}, resources={"custom": {"mine": 8}})
    cluster = {"profiles": {"mine": profile}}
    problem = problems([step], limits={"devices": 0}, **cluster)
    assert [f"{devices} devices (embed 64 x 8) and 0 are allowed" in one for one in problem] == (
        [True] if devices else []
    )
    pod = render(job(steps=[step], cluster=cluster)).workers["embed"]["template"]
    label = pod["metadata"]["labels"].get(DEVICES_LABEL)
    assert label == ("8" if devices else None)


def test_device_limit_includes_npus_and_gpus_of_two_names() -> None:
    npu = model_step(replicas={"max": 2}, resources={"custom": {"NPU": 4}})
    assert "8 devices (embed 2 x 4)" in problems([npu], limits={"devices": 7})[0]
    both = model_step(resources={"gpu": 1, "custom": {"mine": 2}})
    profiles = {"mine": {"resource": "nvidia.com/gpu"}}
    assert "3 devices" in problems([both], limits={"devices": 2}, profiles=profiles)[0]
    made = render(job(steps=[both], cluster={"profiles": profiles})).workers["embed"]["template"]
    limits = made["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "3"


@pytest.mark.parametrize("limits", [{"devices": 100}, {"deviceHours": 1.0}])
def test_devices_of_claims_are_refused_if_devices_are_limited(
    limits: Any, messages: Messages
) -> None:
    """The template of a claim is an object of the tenant, and may ask for any number."""
    profiles = {"GPU": {"resourceClaimTemplateName": "one-gpu"}}
    problem = problems([GPUS], limits=limits, profiles=profiles)
    messages.check(problem[0])
    assert problems([GPUS], limits={"cpu": 100.0}, profiles=profiles) == []


def test_job_above_the_platform_limits_is_not_rendered() -> None:
    platform = Cluster(image="own:1", limits=Limits(devices=4))
    over = with_platform_defaults(job(steps=[GPUS], cluster={"limits": {"devices": 64}}), platform)
    assert "8 devices (embed 4 x 2) and 4 are allowed" in refused(over)


LIMITS = st.builds(
    Limits.model_construct,
    devices=st.none() | st.integers(0, 9),
    cpu=st.none() | st.integers(1, 9000).map(lambda thousandths: thousandths / 1000),
    device_hours=st.none() | st.sampled_from([0.001, 0.5, 7.25]),
)


@given(own=LIMITS, platform=LIMITS)
def test_job_limit_may_only_lower_the_platform_limit(own: Limits, platform: Limits) -> None:
    defaults = Cluster(limits=platform)
    given_limits = own.model_dump(by_alias=True, exclude_none=True)
    limits = with_platform_defaults(
        job(cluster={"limits": given_limits}), defaults
    ).spec.cluster.limits
    for name in Limits.model_fields:
        one, other, both = (getattr(each, name) for each in (own, platform, limits))
        assert both in (one, other)
        assert both is not None or (one is None and other is None)
        assert all(both <= limit for limit in (one, other) if limit is not None)
    assert lower_limits(platform, own) == limits
