"""Jobs in queues of a real Kueue: quota, gangs, topology, preemption, eviction, lost workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.jobs import GATED, LONG, counts
from support.cluster.disruptions import kueue_installed
from support.cluster.kubectl import Kubectl, eventually
from support.cluster.object_store import ObjectStore
from support.cluster.pod_signals import signal
from support.cluster.waits import (
    CLUSTER_START,
    JOB_END,
    outcomes,
    patch,
    pod_bodies,
    ready_pods,
    rows_done,
    suspend,
    wait_for_phase,
    wait_for_reason,
    wait_for_rows,
    wait_until_none_is_left,
)
from support.outputs.rows import rows_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("queue")]
queueing, preemption = pytest.mark.long("kueue"), pytest.mark.long("kueue-preemption")
Job = dict[str, Any]
CPUS, GPUS = "cpus", "gpus"
"""The LocalQueues. The first has room for one job, and the second has two GPUs on one node."""
ELASTIC = "kueue.x-k8s.io/elastic-job"
MANAGED = "kueue-manages-all-jobs"
"""The label of namespaces whose jobs Kueue manages, also those that name no queue."""
HOST = "kubernetes.io/hostname"
LOW, HIGH = "tests-low", "tests-high"
RAYLET = "raylet/raylet"
"""The process of Ray without which the container of a worker ends."""
FIXED = {"workers": {"min": 1, "max": 1}}
QUOTA: dict[str, dict[str, str]] = {
    CPUS: {"cpu": "350m", "memory": "2Gi"},
    GPUS: {"cpu": "1", "memory": "8Gi", "nvidia.com/gpu": "2"},
}


@pytest.fixture(scope="module")
def queue(kubectl: Kubectl) -> Iterator[None]:
    """Install Kueue, and create the LocalQueues in the namespace."""
    with kueue_installed():
        _manage_all_jobs(Kubectl("kueue-system"))
        kubectl("label", "namespace", kubectl.namespace, f"{MANAGED}=true")
        topology = _object("Topology", "tests", spec={"levels": [{"nodeLabel": HOST}]})
        flavor = {"nodeLabels": {"kubernetes.io/os": "linux"}}
        priorities = [_object("WorkloadPriorityClass", name, value=value, description=name)
                      for name, value in ((LOW, 10), (HIGH, 1000))]  # fmt: skip
        queues = [
            *(
                _object("LocalQueue", name, spec={"clusterQueue": f"tests-{name}"})
                for name in QUOTA
            ),
            *(_cluster_queue(name, quota) for name, quota in QUOTA.items()),
            _object("ResourceFlavor", f"tests-{CPUS}", spec={}),
            _object("ResourceFlavor", f"tests-{GPUS}", spec={**flavor, "topologyName": "tests"}),
        ]
        objects = [topology, *priorities, *reversed(queues)]
        kubectl.apply(*objects)
        yield
        kubectl("delete", "batchinferences", "--all", "--wait")
        wait_until_none_is_left(kubectl, "", "rayjobs,workloads")
        for body in reversed(objects):
            kubectl("delete", body["kind"], body["metadata"]["name"], "--wait", timeout=60)


def _manage_all_jobs(kueue: Kubectl) -> None:
    """Let Kueue suspend the jobs of labeled namespaces that name no queue."""
    key, manager = "controller_manager_config.yaml", "deployment/kueue-controller-manager"
    configmap = kueue.get("configmap", "kueue-manager-config") or {}
    config = yaml.safe_load(configmap["data"][key])
    config["manageJobsWithoutQueueName"] = True
    config["managedJobsNamespaceSelector"] = {"matchLabels": {MANAGED: "true"}}
    changed = json.dumps({"data": {key: yaml.safe_dump(config)}})
    kueue("patch", "configmap", "kueue-manager-config", "--type=merge", "--patch", changed)
    kueue("rollout", "restart", manager)
    kueue("rollout", "status", manager, "--timeout=180s", timeout=190)


def _object(kind: str, name: str, **fields: Any) -> Job:
    version = "kueue.x-k8s.io/v1beta2"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def _cluster_queue(name: str, quota: dict[str, str]) -> Job:
    quotas = [{"name": resource, "nominalQuota": limit} for resource, limit in quota.items()]
    flavors = [{"name": f"tests-{name}", "resources": quotas}]
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(quota), "flavors": flavors}],
    }
    return _object("ClusterQueue", f"tests-{name}", spec=spec)


def ready_workers(kubectl: Kubectl, name: str) -> set[str]:
    return {pod["metadata"]["name"] for pod in ready_pods(kubectl, name, "worker")}


@queueing
@pytest.mark.parametrize("size", [FIXED, {}], ids=["fixed", "elastic"])
def test_lost_worker_of_a_queued_job_is_replaced(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    size: Job,
) -> None:
    job = slow_job("queued")
    job["spec"]["cluster"] |= {"queueName": CPUS, **size}
    name = create(job)
    wait_for_rows(kubectl, name)
    ray_job = kubectl.get("rayjob", f"{name}-1") or {}
    assert (ELASTIC in ray_job["metadata"].get("annotations", {})) == (not size)
    lost = ready_workers(kubectl, name)
    for worker in pod_bodies(kubectl, name, "worker"):
        signal(kubectl, worker, RAYLET, "SIGKILL")
    eventually(
        "another worker is ready", lambda: ready_workers(kubectl, name) - lost, CLUSTER_START
    )
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert outcomes(status) == ["Succeeded"]
    assert status["counts"] == counts(GATED)


def reason(kubectl: Kubectl, name: str) -> str:
    return str(wait_for_reason(kubectl, name, "Queued")["message"])


@queueing
def test_second_job_waits_until_both_its_gpus_are_free(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    """Each job has two groups, of one GPU each. If each job got one GPU, both would wait."""
    first, second = (with_two_gpus(slow_job(name)) for name in ("first", "second"))
    running = create(first)
    workload = admitted(kubectl, running)
    assert {name: result["count"] for name, result in workload.items()} == {
        "head": 1,
        "cpu": 1,
        "slow": 1,
        "again": 1,
    }
    domains = [workload[name]["topologyAssignment"]["levels"] for name in ("slow", "again")]
    assert domains == [[HOST], [HOST]]
    waiting = create(second)
    eventually("GPUs are the reason", lambda: "nvidia.com/gpu" in reason(kubectl, waiting),
               90)  # fmt: skip
    wait_for_phase(kubectl, running, "Running")
    assert not pod_bodies(kubectl, waiting, "head")
    open_gate(first)
    open_gate(second)
    for name in (running, waiting):
        status = kubectl.wait_complete(name, JOB_END)
        assert (outcomes(status), status["counts"]) == (["Succeeded"], counts(GATED))


def with_two_gpus(job: Job) -> Job:
    """Return a slow job with two groups of one GPU each, whose pods Kueue places by their host."""
    steps, cluster = job["spec"]["steps"], job["spec"]["cluster"]
    gpu = {"gpu": 1, "memory": "2Gi"}
    again = {**steps[0], "name": "again", "resources": {**gpu, "memory": "3Gi"}}
    steps[:1] = [{**steps[0], "resources": gpu}, again]
    cluster |= {"queueName": GPUS, "topology": {"level": HOST}, **FIXED}
    return job


def workload_of(kubectl: Kubectl, name: str) -> Job:
    """Return the Workload of the first attempt of a job; empty if Kueue has created none."""
    uid = (kubectl.get("rayjob", f"{name}-1") or {"metadata": {"uid": "none"}})["metadata"]["uid"]
    return next(iter(kubectl.list("workloads", f"kueue.x-k8s.io/job-uid={uid}")), {})


def admitted(kubectl: Kubectl, name: str) -> dict[str, Job]:
    """Wait until a job is admitted, and return what it got for each of its pod sets."""
    result = eventually(
        f"{name} is admitted",
        lambda: workload_of(kubectl, name).get("status", {}).get("admission"),
        CLUSTER_START,
    )
    return {each["name"]: each for each in result["podSetAssignments"]}


@preemption
def test_preempted_job_resumes_and_writes_each_row_once(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    tmp_path: Path,
) -> None:
    """A more important job takes the quota. After it, an administrator drains the queue."""
    job, urgent = slow_job("preempted", LONG), slow_job("urgent")
    for each, priority in ((job, LOW), (urgent, HIGH)):
        each["spec"]["cluster"] |= {"queueName": CPUS, "queuePriorityClassName": priority, **FIXED}
    name = create(job)
    wait_for_rows(kubectl, name)
    open_gate(urgent)
    first = create(urgent)
    # Kueue's message is first about the preemption, and then about the missing quota
    words = ("reempted", "quota")
    eventually("it says why", lambda: any(word in reason(kubectl, name) for word in words), 90)
    kubectl.wait_complete(first, JOB_END)
    done = rows_done(kubectl.status(name))
    wait_for_rows(kubectl, name, more_than=done)
    stop(kubectl, "HoldAndDrain")
    wait_for_reason(kubectl, name, "Queued")
    wait_until_none_is_left(kubectl, name, "pods")
    stop(kubectl, "None")
    open_gate(job)
    status = kubectl.wait_complete(name, JOB_END)
    assert (outcomes(status), status["counts"]) == (["Succeeded"], counts(LONG))
    output = job["spec"]["write"]["path"].removeprefix(store.uri(""))
    texts = [row["text"] for row in rows_of(store.download(output, tmp_path))]
    assert sorted(texts) == sorted(f"line {n}" for n in range(LONG) if n % 10)


def stop(kubectl: Kubectl, policy: str) -> None:
    """Set the `stopPolicy` of the ClusterQueue for CPUs."""
    change = json.dumps({"spec": {"stopPolicy": policy}})
    kubectl("patch", "clusterqueue", f"tests-{CPUS}", "--type=merge", "--patch", change)


@queueing
def test_job_that_names_no_queue_is_told_which_there_are(
    kubectl: Kubectl,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    fixed, scales = slow_job("no-queue"), slow_job("no-queue-scales")
    fixed["spec"]["cluster"] |= FIXED
    name, refused = create(fixed), create(scales)
    there = f": {CPUS}, {GPUS}"
    eventually("it names the queues", lambda: there in reason(kubectl, name), 120)
    message = wait_for_reason(kubectl, refused, "Refused")["message"]
    assert "spec.cluster.queueName" in message
    assert message.endswith(there)
    patch(kubectl, name, cluster={"queueName": CPUS})
    suspend(kubectl, name, True)
    wait_for_phase(kubectl, name, "Suspended")
    open_gate(fixed)
    suspend(kubectl, name, False)
    assert kubectl.wait_complete(name, JOB_END)["counts"] == counts(GATED)
