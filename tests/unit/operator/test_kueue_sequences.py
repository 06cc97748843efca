"""The changes that Kueue 0.17 makes to a job's objects, in its order, and the status after each.

With a queue, the RayJob is an elastic job. One patch of Kueue admits or evicts the RayJob: this
patch sets `suspend`, and adds or removes the node selector of the pods. Kueue gates each pod of the
RayCluster, and removes the gates from as many pods as Kueue has admitted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from batchinference.rendering import QUEUE_LABEL, RELEASED
from batchinference_operator.kube.api_errors import Forbidden
from batchinference_operator.reconcile.kueue import GATED_SECONDS
from batchinference_operator.reconcile.requeue import QUEUED_SECONDS
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.fake_kuberay import FakeKubeRay
from support.operator.harness import Harness
from support.operator.objects import RUNNING, pod_body
from support.operator.virtual_time import in_virtual_time, wall_clock

GATE = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
NO_QUOTA = "couldn't assign flavors to pod set gpu: insufficient unused quota"


@dataclass
class Sequence:
    """A job in a queue. Each step changes objects as Kueue and KubeRay do."""

    harness: Harness

    def __post_init__(self) -> None:
        self.cluster = self.harness.cluster
        self.kuberay = FakeKubeRay(self.cluster)

    @property
    def ray_job(self) -> dict[str, Any]:
        return self.cluster.objects["RayJob", "job-1"]

    async def expect(self, phase: str, reason: str, message: str = "", seconds: float = 15) -> None:
        await asyncio.sleep(seconds)
        condition = self.cluster.status()["conditions"][0]
        assert (self.harness.phase(), condition["reason"]) == (phase, reason)
        assert message in condition["message"]

    def decide(self, *, suspend: bool) -> None:
        """Admit or evict the RayJob in one patch."""
        location = {"nodeSelector": None if suspend else {"flavor": "spot"}}
        head = {"headGroupSpec": {"template": {"spec": location}}}
        patch = {"spec": {"suspend": suspend, "rayClusterSpec": head}}
        self.cluster.patch("RayJob", "job-1", patch)

    def gate(self, *, gated: bool) -> None:
        """Gate all pods, as the webhook of RayClusters does, or ungate those that are gated."""
        conditions = [GATE] if gated else []
        for pod in self.cluster.list("Pod"):
            name = pod["metadata"]["name"]
            self.cluster.patch("Pod", name, {"status": {"conditions": conditions}})

    def start_cluster(self) -> None:
        """Let KubeRay create the RayCluster of the admitted RayJob, with gated pods."""
        self.kuberay.reconcile()
        self.kuberay.reconcile()
        self.gate(gated=True)

    def run_driver(self, steps: int) -> None:
        for _ in range(steps):
            self.kuberay.advance_drivers()
            self.kuberay.reconcile()
        self.report()

    def report(self) -> None:
        self.harness.driver.answers["job-1"] = self.kuberay.answer(RayJobView.of(self.ray_job))

    def scale_up(self) -> None:
        """Let Ray's autoscaler add a worker, which Kueue gates until its new slice is admitted."""
        cluster = self.cluster.list("RayCluster")[0]
        known = {pod["metadata"]["name"] for pod in self.cluster.list("Pod")}
        self.kuberay.add_pod(self.ray_job, cluster, "worker")
        for pod in self.cluster.list("Pod"):
            if pod["metadata"]["name"] not in known:
                status = {"status": {"conditions": [GATE]}}
                self.cluster.patch("Pod", pod["metadata"]["name"], status)

    async def admit_and_start(self) -> None:
        """Admit the RayJob, and then ungate the pods of its RayCluster."""
        self.decide(suspend=False)
        self.start_cluster()
        await self.expect("Pending", "Queued", "waiting for Kueue to admit")
        self.gate(gated=False)
        await self.expect("Starting", "Starting")


@in_virtual_time
async def test_pods_are_gated_until_their_slice_is_admitted(harness: Harness) -> None:
    kueue = Sequence(harness)
    async with harness.operator():
        harness.cluster.apply(cluster={"queueName": "gpu"})
        await kueue.expect("Pending", "Queued", "in LocalQueue gpu")
        harness.cluster.warnings["job-1"] = NO_QUOTA
        await kueue.expect("Pending", "Queued", NO_QUOTA, QUEUED_SECONDS)
        del harness.cluster.warnings["job-1"]
        await kueue.admit_and_start()
        kueue.run_driver(2)
        await kueue.expect("Running", "Running")
        harness.cluster.warnings["job-1"] = NO_QUOTA
        kueue.scale_up()
        await kueue.expect("Pending", "Queued", NO_QUOTA)  # no row is finished without it
        kueue.gate(gated=False)
        kueue.run_driver(2)
        await kueue.expect("Running", "Running")
        kueue.scale_up()
        await kueue.expect("Running", "Running")  # the other workers finish rows


@pytest.mark.parametrize("names_queue", [False, True], ids=["no-queue", "queue-default"])
@in_virtual_time
async def test_local_queue_named_default_is_used_or_refused(
    harness: Harness, names_queue: bool
) -> None:
    """The first webhook puts each RayJob of the namespace into the queue. The second rejects a
    cluster with an autoscaler that is not elastic."""
    elastic = "kueue.x-k8s.io/elastic-job"
    put = harness.cluster.put

    def admit(body: dict[str, Any]) -> dict[str, Any]:
        if body["kind"] == "RayJob" and "uid" not in body["metadata"]:
            metadata = body["metadata"]
            if elastic not in metadata.get("annotations", {}):
                why = "should only use autoscaling when workload slicing is enabled"
                raise Forbidden(f"403: a kueue managed job {why}")
            metadata = {**metadata, "labels": {QUEUE_LABEL: "default", **metadata["labels"]}}
            body = {**body, "metadata": metadata, "spec": {**body["spec"], "suspend": True}}
        return put(body)

    harness.cluster.put = admit  # type: ignore[method-assign]
    kueue = Sequence(harness)
    async with harness.operator():
        harness.cluster.apply(**({"cluster": {"queueName": "default"}} if names_queue else {}))
        if names_queue:
            await kueue.expect("Pending", "Queued", "in LocalQueue default")
        else:
            await kueue.expect("Pending", "Refused", "Set spec.cluster.queueName to a LocalQueue")


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
        harness.cluster.put(pod_body("job-1-worker", conditions=[GATE], phase="Pending"))
        await asyncio.sleep(GATED_SECONDS - 5)
        assert harness.count("release pods") == 0
        await asyncio.sleep(60)
        annotations = harness.cluster.objects["RayJob", "job-1"]["metadata"]["annotations"]
        assert (RELEASED in annotations) is released
        assert annotations.get(RELEASED, "") <= to_rfc3339(wall_clock())
