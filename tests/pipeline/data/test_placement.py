"""The placement groups of replicas that need several pods."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from batchinference.pipeline.execution.dataset import placement_arguments
from batchinference.plan import plan_for_cluster, plan_for_machine
from batchinference.plan.groups import GROUP_LABEL
from batchinference.spec import BatchInferenceSpec
from support.documents.parsed import spec_of
from support.documents.vllm_models import vllm_step


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
    given = placement_arguments(plan.stages[0], plan, dataset)
    assert (given["num_gpus"], given["num_cpus"]) == (0, 1.0)
    asked: list[Any] = []
    monkeypatch.setattr(
        ray.util, "placement_group", lambda *args, **named: asked.append((args, named))
    )
    given["ray_remote_args_fn"]()
    bundle = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:A100": 0.001}
    selectors = {"bundle_label_selector": [{GROUP_LABEL: "ask"}] * 6}
    assert asked == [(([bundle] * 6, "PACK"), selectors)]


def test_ray_creates_no_groups_for_actors_that_it_never_starts(dataset: Any) -> None:
    plan = plan_for_cluster(spec(1, 2))
    placement_arguments(plan.stages[0], plan, dataset)
    detectors = dataset.context.issue_detectors_config.detectors
    assert [detector.__name__ for detector in detectors] == ["OtherDetector"]


def test_replica_in_one_pod_has_the_gpus_of_its_actor(dataset: Any) -> None:
    on_cluster = plan_for_cluster(spec(4, 1))
    on_machine = plan_for_machine(spec(2, 2), gpus=4)
    for plan in (on_cluster, on_machine):
        assert placement_arguments(plan.stages[0], plan, dataset) == {}
