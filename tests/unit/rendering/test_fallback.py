"""The choices of devices and of capacity of a job, and the pods of each choice."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering import Names, attempt_objects, choices_of, with_choice
from batchinference.spec import BatchInference, SpecError, parse
from batchinference.spec.status import Choice
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step

PROFILES: dict[str, Any] = {
    "H100": {"nodeSelector": {"gpu": "h100"}, "deviceHour": "4"},
    "A100": {"nodeSelector": {"gpu": "a100"}, "deviceHour": "2.5"},
    "L4": {"nodeSelector": {"gpu": "l4"}},
    "T4": {"nodeSelector": {"gpu": "t4"}, "deviceHour": "0.000040001"},
    "spot": {"nodeSelector": {"capacity": "spot"}, "priceFactor": 0.4,
             "tolerations": [{"key": "spot", "operator": "Exists"}]},
    "on-demand": {"nodeSelector": {"capacity": "on-demand"}},
}  # fmt: skip
SPOT_FIRST = {"capacityTypes": ["spot", "on-demand"]}


def asking(*types: Any, **cluster: Any) -> BatchInference:
    """Return a job with a step for each of these types of a GPU, or lists of them."""
    kinds = [{"acceleratorType": kind} if kind else {} for kind in types]
    steps = [model_step(f"s{n}", resources={"gpu": 1, **kind}) for n, kind in enumerate(kinds)]
    cluster = {"image": "image:1", "profiles": PROFILES, **cluster}
    return parse(document(steps=steps, cluster=cluster))


def chosen(job: BatchInference) -> list[tuple[list[str], str | None, str | None]]:
    return [(one.accelerator_types, one.capacity_type, one.device_hour) for one in choices_of(job)]


@pytest.mark.parametrize(
    ("types", "fallback", "expected"),
    [
        (["H100"], {}, [(["H100"], None, "4")]),
        (["T4"], {}, [(["T4"], None, "0.000040001")]),
        ([["H100", "A100"]], SPOT_FIRST,
         [(["H100"], "spot", "1.6"), (["A100"], "spot", "1"),
          (["H100"], "on-demand", "4"), (["A100"], "on-demand", "2.5")]),
        ([None], SPOT_FIRST, [([], "spot", None), ([], "on-demand", None)]),
        ([["H100", "A100"], ["A100", "L4"]], {},
         [(["H100", "A100"], None, "3.25"), (["A100", "L4"], None, None)]),
        ([["H100", "A100"], "L4"], {},
         [(["H100", "L4"], None, None), (["A100", "L4"], None, None)]),
        ([None], {}, []),
    ],
)  # fmt: skip
def test_choices_are_all_types_with_each_capacity(
    types: list[Any], fallback: Document, expected: list[Any]
) -> None:
    assert chosen(asking(*types, fallback=fallback)) == expected


def test_all_but_the_last_choice_have_a_time() -> None:
    job = asking(["H100", "A100"], fallback={"after": "5m"})
    assert [one.after for one in choices_of(job)] == ["5m", None]


def pods_of(job: BatchInference, number: int) -> dict[str, Document]:
    """Return the templates of the pods of a choice, by group."""
    _, ray_job = attempt_objects(with_choice(job, number), Names("job", "uid", 1), None)
    cluster = ray_job["spec"]["rayClusterSpec"]
    workers = {one["groupName"]: one["template"] for one in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"], **workers}


def selectors(job: BatchInference, number: int) -> dict[str, Document]:
    return {
        name: template["spec"].get("nodeSelector", {})
        for name, template in pods_of(job, number).items()
    }


def test_pods_with_devices_have_the_nodes_of_the_choice() -> None:
    job = asking(["H100", "A100"], fallback=SPOT_FIRST)
    a100 = {"gpu": "a100", "capacity": "spot"}
    assert selectors(job, 2) == {"head": {}, "cpu": {}, "s0": a100}
    template = pods_of(job, 2)["s0"]
    assert {"key": "spot", "operator": "Exists"} in template["spec"]["tolerations"]
    assert template["metadata"]["annotations"]["batchinference.dev/device-hour"] == "1"


def test_rayjob_and_driver_know_the_choice() -> None:
    job = asking(["H100", "A100"])
    choice = choices_of(job)[1]
    made = with_choice(job, choice.number)
    _, ray_job = attempt_objects(made, Names("job", "uid", 1), None, choice=choice)
    text = ray_job["metadata"]["annotations"]["batchinference.dev/choice"]
    assert Choice.model_validate_json(text) == choice
    head = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    variables = {each["name"]: each.get("value", "") for each in head["containers"][0]["env"]}
    assert Choice.of(variables) == choice
    assert Choice.of({}) is None


def test_choice_after_the_last_one_is_the_last_one() -> None:
    """A job may have had more choices when its last attempt began."""
    job = asking(["H100", "A100"])
    assert selectors(job, 7) == selectors(job, 2)


def test_capacity_of_a_job_without_devices_is_that_of_its_workers() -> None:
    job = parse(
        document(
            steps=[model_step()],
            cluster={"image": "image:1", "profiles": PROFILES, "fallback": SPOT_FIRST},
        )
    )
    assert selectors(job, 1) == {"head": {}, "cpu": {"capacity": "spot"}}


@pytest.mark.parametrize(
    ("types", "capacity"),
    [(["H100", "B200"], []), (["H100"], ["spott"]), (["H100"], ["H100", "GPU"])],
    ids=str,
)
def test_each_choice_needs_its_profiles(
    types: list[str], capacity: list[str], messages: Messages
) -> None:
    profiles = {**PROFILES, "GPU": {"resource": "nvidia.com/gpu"}}
    job = asking(types, profiles=profiles, fallback={"capacityTypes": capacity})
    with messages.raises(SpecError):
        attempt_objects(job, Names("job", "uid", 1), None)


def test_limits_count_the_devices_of_pods_that_share_them(messages: Messages) -> None:
    """Six replicas with a quarter of a GPU need two pods with a GPU each."""
    step = model_step(resources={"gpu": 0.25}, replicas={"max": 6})
    cluster: Document = {"image": "image:1", "limits": {"devices": 2}}
    attempt_objects(parse(document(steps=[step], cluster=cluster)), Names("job", "uid", 1), None)
    cluster["limits"] = {"devices": 1}
    with messages.raises(SpecError):
        attempt_objects(
            parse(document(steps=[step], cluster=cluster)), Names("job", "uid", 1), None
        )


def test_slices_of_a_gpu_are_devices() -> None:
    """Limits and costs count each slice of NVIDIA's MIG as a device."""
    profiles = {"GPU": {"resource": "nvidia.com/mig-1g.10gb"}}
    step = model_step("s0", resources={"gpu": 0.5}, replicas={"max": 4}, replicasPerPod=4)
    job = parse(document(steps=[step], cluster={"image": "image:1", "profiles": profiles}))
    pod = pods_of(job, 1)["s0"]
    assert pod["metadata"]["labels"]["batchinference.dev/devices"] == "2"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "2"
