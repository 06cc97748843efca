"""Ray's autoscaler starts nodes in the worker group that a replica requires."""

from __future__ import annotations

import math
from typing import Any

import pytest

from batchinference.plan import Stage, plan_for_cluster
from batchinference.plan.groups import GROUP_LABEL
from batchinference.rendering.rayjob import MAX_SECONDS
from support.documents.minimal import Document, model_step
from support.documents.parsed import job
from support.operator.rendered import Rendered, render


def autoscaling_config(rendered: Rendered) -> Any:
    """Return what Ray's autoscaler reads from a RayCluster."""
    from ray.autoscaler._private.kuberay.autoscaling_config import (
        _derive_autoscaling_config_from_ray_cr,
    )
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig

    metadata = {"name": "cluster", "namespace": "default"}
    resource = {"metadata": metadata, "spec": without_minimum_workers(rendered.cluster)}
    return AutoscalingConfig(
        _derive_autoscaling_config_from_ray_cr(resource), skip_content_hash=True
    )


def launched(rendered: Rendered, demand: dict[str, float], group: str) -> tuple[list[str], bool]:
    """Return the groups of the nodes that the autoscaler starts for an actor with this demand and
    a label selector for `group`, and whether the demand is feasible."""
    from ray.autoscaler.v2.event_logger import AutoscalerEventLogger
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.common_pb2 import LABEL_OPERATOR_IN

    config = autoscaling_config(rendered)
    selector = [[(GROUP_LABEL, LABEL_OPERATOR_IN, [group])]]
    request = ResourceRequestUtil.make(demand, label_selectors=selector)
    reply = ResourceDemandScheduler(AutoscalerEventLogger(None)).schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_worker_nodes(),
            resource_requests=ResourceRequestUtil.group_by_count([request]),
        )
    )
    started = [launch.instance_type for launch in reply.to_launch for _ in range(launch.count)]
    return started, not reply.infeasible_resource_requests


def without_minimum_workers(cluster: Document) -> Document:
    groups = [{**group, "minReplicas": 0} for group in cluster["workerGroupSpecs"]]
    return {**cluster, "workerGroupSpecs": groups}


def demand_of(stage: Stage) -> dict[str, float]:
    """Return the resources that one replica requests from a Ray node."""
    demand: dict[str, float] = {"CPU": math.ceil(stage.cpus), **stage.resources}
    if stage.accelerator:
        demand[f"accelerator_type:{stage.accelerator}"] = 0.001
    return demand


def test_autoscaler_starts_a_node_of_the_group_of_a_replica(rendered: Rendered) -> None:
    plan = plan_for_cluster(rendered.job.spec)
    for stage in plan.stages:
        group = plan.group_of(stage)
        assert launched(rendered, demand_of(stage), group) == ([group], True)


@pytest.mark.parametrize(
    "more", [{"NPU": 3}, {"accelerator_type:Ascend910A": 0.001}, {"GPU": 1}], ids=str
)
def test_autoscaler_reports_demands_above_a_pod_as_infeasible(more: dict[str, Any]) -> None:
    step = model_step(resources={"custom": {"NPU": 2}, "acceleratorType": "Ascend910B"})
    made = render(job(steps=[step], cluster={"profiles": {"Ascend910B": {}}}))
    (stage,) = plan_for_cluster(made.job.spec).stages
    assert launched(made, {**demand_of(stage), **more}, "embed") == ([], False)


def test_devices_may_be_idle_for_another_time_than_cpus() -> None:
    steps = [model_step(resources={"gpu": 1}), model_step("rank", resources={"custom": {"NPU": 1}})]
    cluster: Document = {"idleTimeout": "2m", "profiles": {"GPU": {"idleTimeout": "10m"}}}
    config = autoscaling_config(render(job(steps=steps, cluster=cluster)))
    groups = config.get_node_type_configs()
    by_name = {name: group.idle_timeout_s for name, group in groups.items()}
    assert (by_name["embed"], by_name["rank"], by_name["cpu"]) == (600, None, None)
    assert config.get_idle_timeout_s() == 120


def test_idle_timeouts_are_those_that_kuberay_accepts() -> None:
    """KubeRay refuses a large timeout, and any timeout without an autoscaler."""
    cluster = {"idleTimeout": "999999d", "profiles": {"GPU": {"idleTimeout": "999999d"}}}
    made = render(job(steps=[model_step(resources={"gpu": 1})], cluster=cluster)).cluster
    *_, gpus = made["workerGroupSpecs"]
    idle_timeout_seconds = [one["idleTimeoutSeconds"] for one in (made["autoscalerOptions"], gpus)]
    assert idle_timeout_seconds == [MAX_SECONDS, MAX_SECONDS]
    step = model_step(resources={"gpu": 1}, replicas={"min": 1, "max": 1})
    fixed = {**cluster, "workers": {"min": 1, "max": 1}, "queueName": "gpu"}
    assert "idleTimeoutSeconds" not in str(render(job(steps=[step], cluster=fixed)).cluster)
