"""Pools of warm clusters: which clusters start and end, and which job takes one."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from batchinference.rendering import CLAIM, NAME_LABEL, POOL_LABEL, WARM, Owner, WarmStart
from batchinference.spec import SpecError, parse
from batchinference.spec.cluster import Cluster
from batchinference_operator.controller.controller import Controller
from batchinference_operator.controller.diagnostics import FIRST_BACKOFF
from batchinference_operator.controller.pools import POOL_SECONDS, PoolController
from batchinference_operator.kube.api import (
    MAX_WARM_CLUSTERS,
    Conflict,
    Forbidden,
    Refused,
    Unreachable,
)
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.pool import (
    CLAIM_SECONDS,
    OWNER_PREFIX,
    REFILL_SECONDS,
    START_SECONDS,
    Pool,
    PoolSettings,
    candidates,
    parse_pools,
    reconcile_pool,
)
from batchinference_operator.status.ray_job import RayJobView
from batchinference_operator.status.timestamps import to_rfc3339
from batchinference_operator.status.warm_cluster import Claim, WarmCluster
from support.documents.minimal import document
from support.operator.fake_kuberay import FakeKubeRay
from support.operator.harness import Harness
from support.operator.objects import CONFIG, NAMESPACE, UID, waiting
from support.operator.virtual_time import BEGINNING, in_virtual_time, until

Object = dict[str, Any]

SETTINGS = PoolSettings(namespace=NAMESPACE, name="any", size=2, max_age="1h")
POOL = Pool.of(SETTINGS, CONFIG.defaults)
WITH_POOL = replace(CONFIG, pools=(POOL,))
CLAIMED = Claim(UID, "job-1")
START = WarmStart(POOL.fingerprint, parse(document()), {}, {"metadata": {"name": "job-1"}})


def cluster(name: str = "a", age: float = 60, **fields: Any) -> WarmCluster:
    """Return a ready cluster of the pool. Further arguments are its fields."""
    created = to_rfc3339(BEGINNING - timedelta(seconds=age))
    known: Object = {
        "uid": f"uid-of-{name}", "resource_version": "7", "pool": "any", "created_at": created,
        "fingerprint": POOL.fingerprint, "ready": True, "deleting": False, "claim": None,
        "claimed_at": "",
    }  # fmt: skip
    return WarmCluster(name=name, **{**known, **fields})


def claimed(name: str = "a", ago: float = 0) -> WarmCluster:
    at = to_rfc3339(BEGINNING - timedelta(seconds=ago))
    return cluster(name, claim=CLAIMED, claimed_at=at)


# --- decisions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clusters", "used", "deleted", "created"),
    [
        ([], [], [], 2),
        ([cluster()], [], [], 1),
        ([cluster("a"), cluster("b")], [], [], 0),
        ([cluster("a"), cluster("b"), cluster("new", ready=False)], [], ["new"], 0),
        ([cluster("a"), cluster("b", age=10), cluster("c", age=90)], [], ["b"], 0),
        ([cluster(deleting=True)], [], [], 2),
        ([cluster(age=3600)], [], ["a"], 2),
        ([cluster(fingerprint="of an older spec")], [], ["a"], 2),
        ([cluster(pool="other", fingerprint="other")], [], [], 2),
        ([claimed(ago=REFILL_SECONDS)], ["a"], [], 2),
        ([claimed(ago=REFILL_SECONDS - 1), cluster("b")], ["a"], [], 0),
        ([claimed(ago=REFILL_SECONDS - 1)], ["a"], [], 1),
        ([claimed(ago=CLAIM_SECONDS - 1)], [], [], 2),
        ([claimed(ago=CLAIM_SECONDS)], [], ["a"], 2),
        ([claimed(ago=9999)], ["a"], [], 2),
        ([claimed(ago=-9999)], [], ["a"], 2),
    ],
    ids=[
        *("none", "one-missing", "complete", "one-too-many", "the-youngest-goes", "deleting"),
        *("too-old", "changed-settings", "of-another-pool", "used", "job-starts", "earlier-claim"),
        *("claimed-without-ray-job", "abandoned", "used-for-long", "claimed-in-the-future"),
    ],
)
def test_pool_keeps_its_size(
    clusters: list[WarmCluster], used: list[str], deleted: list[str], created: int
) -> None:
    actions = reconcile_pool(POOL, clusters, used, BEGINNING)
    assert ([one.name for one in actions.delete], actions.create) == (deleted, created)


def test_cluster_that_is_not_ready_in_time_is_late() -> None:
    clusters = [
        cluster("ready", age=START_SECONDS),
        cluster("late", age=START_SECONDS, ready=False),
    ]
    assert [one.name for one in reconcile_pool(POOL, clusters, (), BEGINNING).late] == ["late"]
    clusters = [cluster("starting", age=START_SECONDS - 1, ready=False)]
    assert reconcile_pool(POOL, clusters, (), BEGINNING).late == ()


def test_secrets_of_starting_clusters_are_created_again() -> None:
    """The operator may have been killed between the cluster and its Secret."""
    clusters = [cluster("a"), cluster("b", ready=False)]
    actions = reconcile_pool(POOL, clusters, (), BEGINNING)
    assert [one.name for one in actions.create_secrets] == ["b"]


@pytest.mark.parametrize(
    "unfit",
    [
        cluster(ready=False),
        cluster(deleting=True),
        cluster(fingerprint="other"),
        cluster(claim=CLAIMED),
        cluster(claim=Claim(UID, "job-2")),
        cluster(claim=Claim("another-uid", "job-1")),
    ],
    ids=["starting", "deleting", "other-spec", "own-claim", "other-attempt", "other-job"],
)
def test_cluster_that_is_not_ready_or_free_is_not_claimed(unfit: WarmCluster) -> None:
    """The RayJob of an own claim may have run in the cluster and then been deleted."""
    assert candidates([unfit], START) == []


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({}, False),
        ({"conditions": [{"type": "HeadPodReady", "status": "True"}]}, False),
        ({"state": "ready"}, True),
        ({"state": "ready", "conditions": [{"type": "HeadPodReady", "status": "True"}]}, True),
        ({"state": "ready", "conditions": [{"type": "HeadPodReady", "status": "False"}]}, False),
        ({"state": "ready", "conditions": [{"type": "ReplicaFailure", "status": "False"}]}, True),
    ],
    ids=["new", "workers-start", "older-kuberay", "ready", "lost-head", "other-condition"],
)
def test_cluster_is_ready_only_while_its_head_is(status: Object, ready: bool) -> None:
    metadata = {"name": "a", "uid": "uid-of-a", "resourceVersion": "7"}
    assert WarmCluster.of({"metadata": metadata, "status": status}).ready is ready


def test_oldest_cluster_is_claimed() -> None:
    clusters = [cluster("new", age=1), cluster("old", age=99), claimed("own")]
    assert [one.name for one in candidates(clusters, START)] == ["old", "new"]


def test_pools_are_read_from_the_chart_value() -> None:
    text = "pools: [{namespace: team, name: any, size: 3, spec: {cluster: {image: own:1}}}]"
    (pool,) = parse_pools(text, CONFIG.defaults)
    assert (pool.key, pool.settings.size, pool.settings.max_age) == (("team", "any"), 3, "24h")
    assert pool.job.spec.cluster.image == "own:1"
    assert parse_pools("", CONFIG.defaults) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pools: [{namespace: a, name: b, sice: 3}]", "sice"),
        ("pools: [{namespace: a, name: b, spec: {stepps: []}}]", "pool a/b, spec.stepps"),
        ("pools: [{namespace: a, name: b}]", "pool a/b, spec.cluster.image: no image"),
        (
            "pools: [{namespace: a, name: b, spec: {cluster: {image: own:1, queue: gpu}}}]",
            r"pool a/b, spec.cluster.queue: no job in a queue can take a warm cluster \(gpu\)",
        ),
        ("pools: [{namespace: a, name: b, maxAge: 9m}]", "at least 10m"),
    ],
    ids=["setting", "spec", "image", "queue", "age"],
)
def test_invalid_pool_is_refused_with_its_name(text: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        parse_pools(text, Cluster())


def test_pool_is_refused_if_all_jobs_are_in_a_queue() -> None:
    with pytest.raises(SpecError, match=r"spec.cluster.queue: .* \(gpu\)"):
        parse_pools("pools: [{namespace: a, name: b}]", Cluster(image="own:1", queue="gpu"))


def test_only_pools_of_the_namespace_fit() -> None:
    assert WITH_POOL.fingerprints(NAMESPACE) == {POOL.fingerprint}
    assert WITH_POOL.fingerprints("other") == frozenset()


def test_token_belongs_to_the_cluster_and_not_to_the_job() -> None:
    token = WITH_POOL.warm_token(NAMESPACE, "any-warm-1")
    others = [
        WITH_POOL.warm_token(NAMESPACE, "any-warm-2"),
        WITH_POOL.warm_token("b", "any-warm-1"),
    ]
    assert token not in others


# --- the operator -------------------------------------------------------------------------


class WarmHarness(Harness):
    """A cluster with a pool, and KubeRay."""

    def __init__(self) -> None:
        super().__init__()
        self.kuberay = FakeKubeRay(self.cluster)
        self.cluster.put({"kind": "ConfigMap", "metadata": {"name": f"{OWNER_PREFIX}any"}})

    @property
    def clusters(self) -> list[WarmCluster]:
        return [WarmCluster.of(body) for body in self.cluster.list("RayCluster")]

    @property
    def idle(self) -> list[str]:
        return [one.name for one in self.clusters if one.ready and one.claim is None]

    @property
    def ray_job_view(self) -> RayJobView:
        return RayJobView.of(self.cluster.objects["RayJob", "job-1"])

    async def driver_starts(self) -> None:
        """Wait until KubeRay has submitted the job."""
        await until(lambda: self.cluster.get("RayJob", "job-1"))
        await until(lambda: self.ray_job_view.deployment_status == "Running")

    @asynccontextmanager
    async def pool(self, controller: Controller) -> AsyncIterator[None]:
        """Run the pool and KubeRay while the block runs."""

        async def work() -> None:
            while True:
                self.kuberay.reconcile()
                self.cluster.collect_garbage()
                await asyncio.sleep(1)

        tasks = [
            asyncio.create_task(PoolController(controller).work()),
            asyncio.create_task(work()),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    @asynccontextmanager
    async def warm_operator(self, **config: Any) -> AsyncIterator[Controller]:
        """Run the operator with a pool that is complete."""
        operator = self.operator(**{"config": WITH_POOL, **config})
        async with operator as controller, self.pool(controller):
            await until(lambda: len(self.idle) == SETTINGS.size)
            yield controller


@in_virtual_time
async def test_job_takes_a_warm_cluster_which_is_deleted_after_it() -> None:
    harness = WarmHarness()
    async with harness.warm_operator():
        first = set(harness.idle)
        harness.cluster.apply()
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
        name = harness.ray_job_view.warm_cluster
        assert name in first
        await until(lambda: len(harness.idle) == SETTINGS.size)  # a new one has started
        assert name not in harness.idle
        await finish(harness)
        await until(harness.is_finished)
        await until(lambda: harness.cluster.get("RayCluster", name) is None)
        assert harness.cluster.status()["rayClusterName"] == name
        assert len(harness.idle) == SETTINGS.size
    assert harness.phases[-1] == "Succeeded"
    (owner,) = harness.cluster.list("ConfigMap")
    assert owner["metadata"]["name"] == f"{OWNER_PREFIX}any", "the job has no ConfigMap"
    secrets = [body["metadata"]["name"] for body in harness.cluster.list("Secret")]
    assert sorted(secrets) == sorted(f"{one.name}-token" for one in harness.clusters)


async def finish(harness: WarmHarness) -> None:
    """Let the driver of the RayJob succeed."""
    kuberay = harness.kuberay
    await harness.driver_starts()
    name = harness.ray_job_view.cluster
    while not kuberay.drivers[name].state or not kuberay.drivers[name].state.ended:
        kuberay.advance_drivers()
        harness.driver.answers["job-1"] = kuberay.answer(harness.ray_job_view)
        await asyncio.sleep(5)


@in_virtual_time
async def test_two_jobs_never_take_the_same_cluster_and_the_third_starts_its_own() -> None:
    harness = WarmHarness()
    async with harness.warm_operator(workers=3):
        for name in ("job", "other", "third"):
            harness.cluster.apply(name)
        await until(lambda: len(harness.cluster.list("RayJob")) == 3)
    views = [RayJobView.of(body) for body in harness.cluster.list("RayJob")]
    warm = [view.warm_cluster for view in views if view.warm_cluster]
    assert len(set(warm)) == len(warm) == SETTINGS.size


@in_virtual_time
async def test_claim_that_another_attempt_wins_is_not_repeated() -> None:
    harness = WarmHarness()
    async with harness.warm_operator():
        harness.fail_call("claim RayCluster", Conflict("modified"))
        harness.cluster.apply()
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
    assert harness.ray_job_view.warm_cluster == ""
    assert harness.count("claim RayCluster") == SETTINGS.size


@in_virtual_time
async def test_ray_job_that_is_created_again_does_not_run_in_the_same_cluster() -> None:
    """A user deletes the RayJob before the operator knows it. Its driver may have started."""
    harness = WarmHarness()
    used: list[str] = []

    def delete(call: str) -> None:
        if call == "create RayJob" and not used:
            used.append(harness.ray_job_view.warm_cluster)
            harness.cluster.delete("RayJob", "job-1")
            raise Unreachable("no answer")

    async with harness.warm_operator():
        harness.api.after = delete
        harness.cluster.apply()
        await until(lambda: used and harness.cluster.get("RayJob", "job-1"))
        assert harness.ray_job_view.warm_cluster not in used
        await asyncio.sleep(CLAIM_SECONDS + REFILL_SECONDS)
        assert used[0] not in [one.name for one in harness.clusters]


@in_virtual_time
async def test_job_starts_its_own_cluster_if_pools_are_forbidden() -> None:
    harness = WarmHarness()
    async with harness.warm_operator():
        harness.fail_call("list RayCluster", Forbidden("rayclusters is forbidden"))
        harness.cluster.apply()
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
    assert harness.ray_job_view.warm_cluster == ""


def refusal(body: Object) -> str:
    return "uses an existing cluster" if "clusterSelector" in body.get("spec", {}) else ""


@in_virtual_time
async def test_job_starts_its_own_cluster_if_its_ray_job_in_a_warm_cluster_is_refused() -> None:
    """Kueue refuses such RayJobs in a namespace with a LocalQueue named `default`."""
    harness = WarmHarness()
    async with harness.warm_operator():
        idle = harness.idle
        harness.cluster.validate = refusal
        harness.cluster.apply()
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
        assert harness.idle == idle
    assert harness.ray_job_view.warm_cluster == ""
    assert harness.count("claim RayCluster") == 0


@in_virtual_time
async def test_secret_of_an_idle_cluster_that_was_deleted_is_created_again_before_the_claim() -> (
    None
):
    harness = WarmHarness()
    async with harness.warm_operator():
        for name in harness.idle:
            harness.cluster.delete("Secret", f"{name}-token")
        harness.cluster.apply()
        await harness.driver_starts()
        assert harness.cluster.get("Secret", f"{harness.ray_job_view.warm_cluster}-token")


@in_virtual_time
async def test_secret_of_a_claimed_cluster_that_was_deleted_is_created_again() -> None:
    harness = WarmHarness()
    async with harness.warm_operator():
        harness.cluster.apply()
        await harness.driver_starts()
        cluster = harness.ray_job_view.warm_cluster
        before = harness.cluster.objects["Secret", f"{cluster}-token"]
        harness.cluster.delete("Secret", f"{cluster}-token")
        (head, *_) = [body["metadata"]["name"] for body in harness.cluster.list("Pod")
                      if body["metadata"]["labels"]["ray.io/cluster"] == cluster]  # fmt: skip
        problem = waiting("CreateContainerConfigError", f'secret "{cluster}-token" not found')
        harness.cluster.patch("Pod", head, {"status": problem})
        await until(lambda: harness.cluster.get("Secret", f"{cluster}-token"))
    after = harness.cluster.objects["Secret", f"{cluster}-token"]
    assert after["stringData"] == before["stringData"]


@in_virtual_time
async def test_idle_cluster_that_has_lost_its_head_is_not_claimed() -> None:
    harness = WarmHarness()
    async with harness.warm_operator():
        oldest, other = harness.idle
        lost = [{"type": "HeadPodReady", "status": "False"}]
        harness.cluster.patch("RayCluster", oldest, {"status": {"conditions": lost}})
        harness.cluster.apply()
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
    assert harness.ray_job_view.warm_cluster == other


@in_virtual_time
async def test_job_that_does_not_fit_reads_no_clusters() -> None:
    harness = WarmHarness()
    async with harness.operator(config=WITH_POOL):
        harness.cluster.apply(cluster={"workers": {"memory": "9Gi"}})
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
    assert harness.count("list RayCluster") == 0


@in_virtual_time
async def test_suspended_job_deletes_its_warm_cluster() -> None:
    harness = WarmHarness()
    async with harness.warm_operator():
        harness.cluster.apply()
        await until(lambda: harness.phase() == "Starting")
        name = harness.ray_job_view.warm_cluster
        harness.cluster.patch("BatchInference", "job", {"spec": {"suspend": True}})
        await until(lambda: harness.phase() == "Suspended")
        assert name not in [one.name for one in harness.clusters]
    assert harness.cluster.get("RayJob", "job-1") is None


@in_virtual_time
async def test_attempt_whose_warm_cluster_is_deleted_is_retried() -> None:
    """KubeRay would wait forever: it creates no cluster for such a RayJob."""
    harness = WarmHarness()
    async with harness.warm_operator():
        harness.cluster.apply()
        await harness.driver_starts()
        harness.cluster.delete("RayCluster", harness.ray_job_view.warm_cluster)
        await until(lambda: harness.phase() == "Retrying")
    (attempt,) = harness.cluster.status()["attempts"]
    assert attempt["cause"] == "HeadLost"
    assert "was deleted" in attempt["message"]


@in_virtual_time
async def test_idle_clusters_are_not_charged_and_pods_are_charged_from_the_start_of_the_job() -> (
    None
):
    harness = WarmHarness()
    async with harness.warm_operator():
        await asyncio.sleep(1000)
        harness.cluster.apply()
        await harness.driver_starts()
        await asyncio.sleep(60)
    status = harness.cluster.status()
    assert 0 < status["cpuSeconds"] < 2 * 2 * 200


@in_virtual_time
async def test_pods_of_a_warm_cluster_are_pods_of_the_job() -> None:
    harness = WarmHarness()
    found = []
    async with harness.warm_operator() as controller:
        harness.cluster.apply()
        await until(lambda: harness.phase() == "Starting")
        pods = harness.cluster.list("Pod")
        assert {body["metadata"]["labels"][NAME_LABEL] for body in pods} == {WARM}
        found.append(controller.cache.observe((NAMESPACE, "job")))
    (observed,) = found
    assert observed is not None
    assert len(observed.pods_of_attempt) == len(observed.pods) == 2


@in_virtual_time
async def test_cluster_that_was_claimed_for_a_deleted_job_is_collected() -> None:
    """The BatchInference owns the cluster, so that it is deleted even without an operator."""
    harness = WarmHarness()
    async with harness.warm_operator():
        harness.cluster.apply()
        await until(lambda: harness.cluster.get("RayJob", "job-1"))
    (body,) = [one for one in harness.cluster.list("RayCluster")
               if CLAIM in one["metadata"]["annotations"]]  # fmt: skip
    job = JobView.of(harness.cluster.objects["BatchInference", "job"])
    assert body["metadata"]["ownerReferences"] == [Owner("job", job.uid).reference()]
    harness.cluster.delete("BatchInference", "job")
    harness.cluster.collect_garbage()
    assert body["metadata"]["name"] not in [one.name for one in harness.clusters]


@in_virtual_time
async def test_pool_without_its_config_map_creates_nothing() -> None:
    harness = WarmHarness()
    harness.cluster.delete("ConfigMap", f"{OWNER_PREFIX}any")
    async with harness.operator(config=WITH_POOL) as controller:
        with pytest.raises(Refused, match="batch-inference-pool-any does not exist"):
            await PoolController(controller).reconcile(POOL)
    assert harness.clusters == []


@in_virtual_time
async def test_pool_whose_clusters_cannot_all_be_listed_creates_none() -> None:
    """Otherwise it would create clusters without end."""
    harness = WarmHarness()
    for number in range(MAX_WARM_CLUSTERS):
        metadata = {"name": f"any-{number}", "labels": {POOL_LABEL: "any"}}
        harness.cluster.put({"kind": "RayCluster", "metadata": metadata})
    async with harness.operator(config=WITH_POOL) as controller:
        with pytest.raises(Refused, match="300 or more RayClusters"):
            await PoolController(controller).reconcile(POOL)
    assert len(harness.clusters) == MAX_WARM_CLUSTERS


@in_virtual_time
async def test_pool_reports_why_its_clusters_do_not_start() -> None:
    harness = WarmHarness()
    async with harness.operator(config=WITH_POOL) as controller:
        pool = PoolController(controller)
        assert await pool.reconcile(POOL) == ""
        for one in harness.clusters:
            harness.cluster.warnings[one.name] = "exceeded quota"
        await asyncio.sleep(START_SECONDS + 1)
        late = await pool.reconcile(POOL)
        assert re.fullmatch("RayCluster any-.* is not ready after 300 s: exceeded quota", late)
        harness.cluster.warnings.clear()
        await asyncio.sleep(FIRST_BACKOFF)
        assert "see the Events of its pods" in await pool.reconcile(POOL)


@in_virtual_time
async def test_events_of_a_late_cluster_are_read_less_and_less_often() -> None:
    """Each read searches all Events of the namespace."""
    harness = WarmHarness()
    async with harness.operator(config=WITH_POOL) as controller:
        pool = PoolController(controller)
        await pool.reconcile(POOL)
        await asyncio.sleep(START_SECONDS + 1)
        for _ in range(int(600 / POOL_SECONDS)):
            assert "is not ready after 300 s" in await pool.reconcile(POOL)
            await asyncio.sleep(POOL_SECONDS)
    assert 5 <= harness.count("get Events") <= 7


@in_virtual_time
async def test_clusters_of_other_pools_do_not_count() -> None:
    harness = WarmHarness()
    for number in range(MAX_WARM_CLUSTERS):
        metadata = {"name": f"other-{number}", "labels": {POOL_LABEL: "other"}}
        harness.cluster.put({"kind": "RayCluster", "metadata": metadata})
    async with harness.operator(config=WITH_POOL) as controller:
        await PoolController(controller).reconcile(POOL)
    assert len(harness.clusters) == MAX_WARM_CLUSTERS + SETTINGS.size


@pytest.mark.parametrize("killed_after", range(4))
@in_virtual_time
async def test_reconcile_of_a_pool_may_be_killed_after_any_write(killed_after: int) -> None:
    harness = WarmHarness()
    writes = itertools.count()

    class Killed(BaseException):
        """The death of the operator process."""

    def kill(call: str) -> None:
        if call.startswith(("create", "delete")) and next(writes) == killed_after:
            raise Killed

    async with harness.operator(config=WITH_POOL) as controller:
        harness.api.after = kill
        try:
            await PoolController(controller).reconcile(POOL)
        except Killed:
            pass
        harness.api.after = lambda _: None
        async with harness.pool(controller):
            await until(lambda: len(harness.idle) == SETTINGS.size)
            await asyncio.sleep(3 * POOL_SECONDS)
    assert len(harness.clusters) == SETTINGS.size
    assert len(harness.cluster.list("Secret")) == SETTINGS.size
