"""Ray clusters that could never run a job are rejected before the job waits for nodes. Replicas
that need several pods have placement groups."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import ray

from batchinference.pipeline import ray_compat
from batchinference.pipeline.errors import DeviceFailed, JobFailure
from batchinference.pipeline.execution import task_resources
from batchinference.pipeline.execution.dataset import placement_arguments
from batchinference.pipeline.execution.task_resources import (
    capacity_of,
    check_nodes,
    selector,
    without_faulty_nodes,
    without_suspected_nodes,
)
from batchinference.plan import Plan, plan_for_cluster, plan_for_machine
from batchinference.plan.groups import GROUP_LABEL
from batchinference.spec import BatchInferenceSpec
from batchinference.spec.report import Capacity
from plugins.messages import Messages
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import spec_of
from support.documents.vllm_models import vllm_step

GROUP = "batchinference.dev/group"


def node(group: str | None = None, alive: bool = True, **resources: float) -> dict[str, Any]:
    """Return a node in the form of `ray.nodes()`."""
    labels = {"ray.io/node-id": "a"} | ({GROUP: group} if group else {})
    return {"Alive": alive, "Labels": labels, "Resources": {"CPU": 8.0, **resources}}


def check(step: Document, *nodes: dict[str, Any]) -> None:
    check_nodes(plan_for_cluster(spec_of(steps=[step])), list(nodes))


def refusal(step: Document, *nodes: dict[str, Any]) -> str:
    with pytest.raises(JobFailure) as refused:
        check(step, *nodes)
    return refused.value.message


ON_GPU = model_step(resources={"gpu": 1, "cpu": 2, "acceleratorType": "T4"})
ON_NPU = model_step(resources={"custom": {"NPU": 2}})
T4 = {"GPU": 1.0, "accelerator_type:T4": 1.0}


def test_nodes_for_every_group_are_accepted() -> None:
    check(ON_GPU, node("cpu"), node("embed", **T4), node())
    check(ON_NPU, node("cpu"), node("embed", NPU=8.0))
    check(model_step(), node("cpu"))


def test_error_names_each_group_without_nodes(messages: Messages) -> None:
    messages.check(refusal(model_step(), node(), node()))
    messages.check(refusal(ON_GPU, node()))


def test_nodes_too_small_for_a_replica_are_rejected(messages: Messages) -> None:
    other = {"GPU": 4.0, "accelerator_type:A100": 1.0}
    for there in ({}, {"GPU": 1.0}, {**T4, "CPU": 1.0}, other):
        messages.check(refusal(ON_GPU, node("cpu"), node("embed", **there)))


def test_one_node_must_hold_a_whole_replica() -> None:
    result = refusal(ON_NPU, node("cpu"), node("embed", NPU=1.0), node("embed", NPU=1.0))
    assert "has 1 CPU, 2 NPU" in result


def test_widest_cpu_step_needs_a_node(messages: Messages) -> None:
    step = python_step("wide", "m:function", resources={"cpu": 12})
    messages.check(refusal(step, node("cpu")))


def test_dead_nodes_do_not_count(messages: Messages) -> None:
    messages.check(refusal(model_step(), node("cpu", alive=False)))


def test_autoscaling_cluster_is_accepted() -> None:
    check(ON_GPU, node("head", CPU=0.0))


FAULT = DeviceFailed("step 'embed': a device of the node pod-1 failed", "b")


@pytest.mark.parametrize(
    ("failures", "others", "replicas", "expected"),
    [
        ([JobFailure("another")], [], 1, ()),
        ([JobFailure("another"), FAULT], [node("embed", **T4)], 1, ("b",)),
        ([FAULT], [node("embed", alive=False, **T4)], 1, None),
        ([FAULT], [node("embed")], 1, None),
        ([FAULT], [node("head")], 2, ("b",)),
        ([FAULT], [node("head")], 1, None),
    ],
    ids=[
        *("no device failed", "another node", "a lost node", "a node without a GPU"),
        *("a node that can be started", "no more nodes of the group"),
    ],
)
def test_node_of_a_faulty_device_is_left_out_if_others_can_run_the_plan(
    monkeypatch: pytest.MonkeyPatch,
    failures: list[JobFailure],
    others: list[dict[str, Any]],
    replicas: int,
    expected: tuple[str, ...] | None,
    messages: Messages,
) -> None:
    step = model_step(**{**ON_GPU, "name": "embed", "replicas": {"max": replicas}})
    plan = plan_for_cluster(spec_of(steps=[step]))
    nodes = [node("cpu"), {**node("embed", **T4), "NodeID": "b"}, *others]
    monkeypatch.setattr(task_resources.ray, "nodes", lambda: nodes)
    if expected is None:
        with messages.raises(DeviceFailed):
            without_faulty_nodes(plan, failures)
        return
    left = without_faulty_nodes(plan, failures)
    assert left.faulty_nodes == expected
    result = selector(left, "embed")
    assert result == {GROUP: "embed"} | ({"ray.io/node-id": "!in(b)"} if expected else {})


@pytest.mark.parametrize(
    ("nodes", "suspected", "expected"),
    [
        ([node("embed", **T4)], "", ()),
        ([node("embed", **T4)], "b", ("b",)),
        ([node("embed", **T4)], "ab", ()),
        ([node("embed", alive=False, **T4)], "b", ()),
        ([node("embed")], "b", ()),
        ([node("head")], "b", ()),
        ([node("head"), node("embed", **T4)], "b", ("b",)),
    ],
    ids=[
        *("no suspect", "another node", "no other node", "a lost node", "a node without a GPU"),
        *("a node that can be started", "another node, and more"),
    ],
)
def test_node_at_which_processes_die_is_left_out_if_others_exist(
    monkeypatch: pytest.MonkeyPatch,
    nodes: list[dict[str, Any]],
    suspected: str,
    expected: tuple[str, ...],
) -> None:
    step = model_step(**{**ON_GPU, "name": "embed", "replicas": {"max": 3}})
    plan = plan_for_cluster(spec_of(steps=[step]))
    others = [{**each, "NodeID": "a"} for each in nodes]
    living = [node("cpu"), {**node("embed", **T4), "NodeID": "b"}, *others]
    monkeypatch.setattr(task_resources.ray, "nodes", lambda: living)
    assert without_suspected_nodes(plan, {*suspected}).faulty_nodes == expected


@pytest.mark.parametrize(("own", "expected"), [("a", {"a", "b"}), ("e", set()), ("lost", set())])
def test_nodes_of_the_group_of_a_process_are_those_that_live(
    monkeypatch: pytest.MonkeyPatch, own: str, expected: set[str]
) -> None:
    nodes = [node("cpu"), node("cpu"), node("cpu", alive=False), node("embed"), node()]
    named = [{**each, "NodeID": name} for each, name in zip(nodes, "abcde", strict=True)]
    monkeypatch.setattr(ray_compat.ray, "nodes", lambda: named)
    monkeypatch.setattr(ray_compat, "node_of_this_process", lambda: own)
    assert ray_compat.nodes_like_this(GROUP) == expected


def test_single_machine_has_no_other_node() -> None:
    plan = plan_for_machine(spec_of(steps=[python_step()]))
    with pytest.raises(DeviceFailed, match="No other node"):
        without_faulty_nodes(plan, [FAULT])
    assert without_suspected_nodes(plan, {"b"}) == plan


def capacity(monkeypatch: pytest.MonkeyPatch, plan: Plan, *nodes: dict[str, Any]) -> Capacity:
    cpus = sum(result["Resources"]["CPU"] for result in nodes if result["Alive"])
    monkeypatch.setattr(task_resources.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(task_resources.ray, "nodes", lambda: list(nodes))
    monkeypatch.setattr(task_resources.ray, "cluster_resources", lambda: {"CPU": cpus})
    result = capacity_of(plan)
    assert result is not None
    return result


def test_capacity_of_a_cluster_has_cpus_of_its_cpu_group(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = (node("head", CPU=0.0), node("cpu"), node("cpu"), node("cpu", alive=False))
    plan = plan_for_cluster(spec_of(steps=[ON_GPU]))
    result = capacity(monkeypatch, plan, *nodes, node("embed", CPU=2.0, GPU=1.0))
    assert result == Capacity(cpus=16.0, gpus=1.0, writers=9)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (python_step(), Capacity(cpus=6.0, writers=6)),
        (python_step(replicas={"max": 2}), Capacity(cpus=5.0, writers=3)),
    ],
    ids=["single segment", "pool"],
)
def test_capacity_of_a_machine_lacks_the_cpus_of_writers(
    monkeypatch: pytest.MonkeyPatch, step: Document, expected: Capacity
) -> None:
    plan = plan_for_machine(spec_of(steps=[step]))
    assert capacity(monkeypatch, plan, node(CPU=6.0)) == expected


def test_capacity_is_unknown_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for_machine(spec_of(steps=[python_step()]))
    monkeypatch.setattr(task_resources.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(task_resources.ray, "nodes", pytest.fail)
    assert capacity_of(plan) is None
    monkeypatch.setattr(task_resources.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(task_resources.ray, "nodes", lambda: 1 / 0)
    assert capacity_of(plan) is None


def test_capacity_of_an_attempt_is_the_highest() -> None:
    first, second = Capacity(cpus=2, gpus=4, writers=1), Capacity(cpus=8, writers=4)
    assert first.highest(None) == first
    assert first.highest(second) == second.highest(first) == Capacity(cpus=8, gpus=4, writers=4)


def spec(tensor: int, pipeline: int) -> BatchInferenceSpec:
    gpus = tensor * pipeline
    step = vllm_step(gpu=gpus, parallelism={"tensor": tensor, "pipeline": pipeline})
    step["resources"] |= {"cpu": 2, "acceleratorType": "A100"}
    return spec_of(steps=[step])


@pytest.fixture
def dataset() -> Any:
    from types import SimpleNamespace

    class HighMemoryIssueDetector: ...

    class OtherDetector: ...

    detectors = SimpleNamespace(detectors=[HighMemoryIssueDetector, OtherDetector])
    return SimpleNamespace(context=SimpleNamespace(issue_detectors_config=detectors))


def test_replica_on_several_pods_has_a_bundle_for_each_gpu(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for_cluster(spec(2, 3))
    given = placement_arguments(plan.stages[0], plan, dataset, ExitStack())
    assert (given["num_gpus"], given["num_cpus"]) == (0, 1.0)
    asked: list[Any] = []
    monkeypatch.setattr(ray.util, "placement_group", lambda **named: asked.append(named))
    given["ray_remote_args_fn"]()
    bundle = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A100": 0.001}
    selectors = {"bundle_label_selector": [{GROUP_LABEL: "ask"}] * 6}
    assert asked == [{"bundles": [bundle] * 6, **selectors}]


@pytest.mark.parametrize(("others", "expected"), [(2, ()), (3, ("b",))])
def test_replica_on_several_pods_needs_as_many_other_nodes(
    monkeypatch: pytest.MonkeyPatch, others: int, expected: tuple[str, ...]
) -> None:
    plan = plan_for_cluster(spec(2, 3))
    other = [{**node("ask"), "NodeID": f"other-{number}"} for number in range(others)]
    living = [node("head"), {**node("ask"), "NodeID": "b"}, *other]
    monkeypatch.setattr(task_resources.ray, "nodes", lambda: living)
    larger = replace(plan, groups=tuple(replace(group, max=9) for group in plan.groups))
    assert without_suspected_nodes(larger, {"b"}).faulty_nodes == expected


@pytest.mark.parametrize(("others", "expected"), [(2, ()), (3, ("b",))])
def test_pools_that_share_a_group_need_nodes_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, others: int, expected: tuple[str, ...]
) -> None:
    """The first pool would occupy both remaining nodes, and the second would wait forever."""
    steps = [
        model_step(**{**ON_GPU, "name": name, "replicas": {"min": 2, "max": 2}})
        for name in ("a", "b")
    ]
    plan = plan_for_cluster(spec_of(steps=steps))
    (group,) = (group.name for group in plan.groups if group.gpus)
    other = [{**node(group, **T4), "NodeID": f"other-{number}"} for number in range(others)]
    living = [node("cpu"), {**node(group, **T4), "NodeID": "b"}, *other]
    monkeypatch.setattr(task_resources.ray, "nodes", lambda: living)
    assert without_suspected_nodes(plan, {"b"}).faulty_nodes == expected


@pytest.mark.parametrize(("others", "expected"), [(1, ()), (2, ("b",))])
def test_actors_leave_cpus_of_other_nodes_to_tasks(
    monkeypatch: pytest.MonkeyPatch, others: int, expected: tuple[str, ...]
) -> None:
    """Without CPUs for the tasks that read, the job would wait forever."""
    step = model_step(resources={"cpu": 4}, replicas={"min": 2, "max": 2})
    plan = plan_for_cluster(spec_of(cluster={"workers": {"cpu": 8, "max": 3}}, steps=[step]))
    other = [{**node("cpu"), "NodeID": f"other-{number}"} for number in range(others)]
    living = [{**node("cpu"), "NodeID": "b"}, *other]
    monkeypatch.setattr(task_resources.ray, "nodes", lambda: living)
    assert without_suspected_nodes(plan, {"b"}).faulty_nodes == expected


def test_ray_creates_no_groups_for_actors_that_it_never_starts(dataset: Any) -> None:
    plan = plan_for_cluster(spec(1, 2))
    placement_arguments(plan.stages[0], plan, dataset, ExitStack())
    detectors = dataset.context.issue_detectors_config.detectors
    assert [detector.__name__ for detector in detectors] == ["OtherDetector"]


def test_replica_in_one_pod_has_the_gpus_of_its_actor(dataset: Any) -> None:
    on_cluster = plan_for_cluster(spec(4, 1))
    on_machine = plan_for_machine(spec(2, 2), gpus=4)
    for plan in (on_cluster, on_machine):
        assert placement_arguments(plan.stages[0], plan, dataset, ExitStack()) == {}
