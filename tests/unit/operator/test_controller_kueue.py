"""The reconcile loop and the pods that Kueue holds back."""

from __future__ import annotations

import asyncio

import pytest

from batchinference.rendering import QUEUE_LABEL, RELEASED
from batchinference_operator.reconcile.kueue import GATED_SECONDS
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.harness import Harness
from support.operator.objects import RUNNING, pod_body
from support.operator.virtual_time import in_virtual_time, wall_clock

GATED = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
    "phase": "Pending",
}


@pytest.mark.parametrize(("queue", "released"), [("gpu", True), ("", False)])
@in_virtual_time
async def test_gated_pods_of_a_ray_job_in_a_queue_are_released(
    harness: Harness, queue: str, released: bool
) -> None:
    async with harness.operator():
        await harness.start_job()
        labels = {QUEUE_LABEL: queue}
        harness.cluster.patch("RayJob", "job-1", {"metadata": {"labels": labels}})
        await harness.ray_job().step(**RUNNING, rayClusterName="job-1-cluster")
        harness.cluster.put(pod_body("job-1-worker", **GATED))
        await asyncio.sleep(GATED_SECONDS - 5)
        assert harness.count("release pods") == 0
        await asyncio.sleep(60)
        annotations = harness.cluster.objects["RayJob", "job-1"]["metadata"]["annotations"]
        assert (RELEASED in annotations) is released
        assert annotations.get(RELEASED, "") <= to_rfc3339(wall_clock())
