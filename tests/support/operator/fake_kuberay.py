"""KubeRay and the drivers of Ray jobs, as state machines.

FakeKubeRay advances all RayJobs when a test calls it. RayJobScript takes one RayJob through its
states in virtual time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from batchinference.rendering import ATTEMPT_LABEL, DEVICES_LABEL, NAME_LABEL
from batchinference.spec.report import JobState, Report
from batchinference_operator.reconcile.observed_and_actions import DriverAnswer
from batchinference_operator.status.ray_job_view import RayJobView, owner_uid
from batchinference_operator.status.timestamps import to_rfc3339
from support.operator.fake_cluster import FakeCluster, Object
from support.operator.objects import RUNNING, asking, placed, report, waiting
from support.operator.virtual_time import seconds_of, until

FINALIZER = "ray.io/rayjob-finalizer"
ENDS = {JobState.SUCCEEDED: "Complete", JobState.FAILED: "Failed"}
ROWS = 800


@dataclass
class RayDriver:
    """The driver of a Ray job. A driver has no state before its start."""

    state: JobState | None = None
    rows: int = 0
    cause: str | None = None

    def advance(self) -> None:
        """Take one step towards success."""
        if self.state is None:
            self.state = JobState.PREPARING
        elif self.state == JobState.PREPARING:
            self.state = JobState.RUNNING
        elif self.state == JobState.RUNNING and self.rows < ROWS:
            self.rows += ROWS // 8
        elif self.state == JobState.RUNNING:
            self.state = JobState.FINALIZING
        elif self.state == JobState.FINALIZING:
            self.state = JobState.SUCCEEDED

    @property
    def ray_status(self) -> str:
        """The status of the job in Ray."""
        if self.state is None:
            return "PENDING"
        return self.state.value.upper() if self.state.ended else "RUNNING"


@dataclass
class FakeKubeRay:
    """KubeRay in HTTPMode: the states of a RayJob, its finalizer and its RayCluster."""

    cluster: FakeCluster
    problem: dict[str, float] = field(default_factory=dict)
    """The time until which a fault lasts: KubeRay is `away`, drivers are `silent`, or new pods are
    `stuck`."""
    drivers: dict[str, RayDriver] = field(default_factory=dict)
    """Drivers by the name of the RayCluster."""
    succeeded: set[str | None] = field(default_factory=set)
    """The uids of the BatchInferences whose driver has succeeded."""

    def has(self, problem: str) -> bool:
        return self.problem.get(problem, 0.0) > seconds_of(self.cluster.now())

    def reconcile(self) -> None:
        """Reconcile every RayJob once, unless KubeRay is away."""
        if self.has("away"):
            return
        self.cluster.finalize("RayJob")
        for body in self.cluster.list("RayJob"):
            self._reconcile(body)

    def advance_drivers(self) -> None:
        """Let every driver take one step."""
        for name, driver in self.drivers.items():
            if self.cluster.get("RayCluster", name) is not None:
                driver.advance()
                self._note_success(name, driver)

    def fail_driver(self, cause: str) -> str | None:
        """Make a driver fail, and return the uid of its BatchInference; None if no driver runs."""
        for name, driver in self.drivers.items():
            cluster = self.cluster.get("RayCluster", name)
            if cluster and driver.state is not None and not driver.state.ended:
                driver.state, driver.cause = JobState.FAILED, cause
                return self._job_of(cluster)
        return None

    def lose_head(self, status: Object | None = None) -> None:
        """Replace all heads, and submit the jobs again. `status` is that of the lost pods; None if
        they were deleted without one."""
        for name in self.drivers:
            self.drivers[name] = RayDriver()
            for pod in self._pods(name):
                if pod["metadata"]["labels"]["ray.io/node-type"] == "head":
                    self._replace(pod, status)

    def _replace(self, pod: Object, status: Object | None) -> None:
        metadata = pod["metadata"]
        if status is not None:
            self.cluster.patch("Pod", metadata["name"], {"status": status})
        self.cluster.delete("Pod", metadata["name"])
        left = {key: metadata[key] for key in ("labels", "ownerReferences")}
        name = f"{metadata['labels']['ray.io/cluster']}-{self.cluster.version}-head"
        self.cluster.put({**pod, "metadata": {"name": name, **left}, "status": placed(self._now())})

    def give_up(self, body: Object, reason: str) -> None:
        """Mark a RayJob as failed, as KubeRay does, regardless of its driver."""
        end = {"jobDeploymentStatus": "Failed", "reason": reason, "endTime": self._now()}
        self._set_status(body, **end)

    def answer(self, ray_job: RayJobView) -> DriverAnswer:
        """Return the answer of a driver to a poll."""
        if self.has("silent") or self.cluster.get("RayCluster", ray_job.cluster) is None:
            return DriverAnswer(reached=False)
        return DriverAnswer(reached=True, report=self._report(self.drivers[ray_job.cluster]))

    def stop_driver(self, ray_job: RayJobView) -> None:
        """Ask a driver to stop."""
        driver = self.drivers.get(ray_job.cluster)
        if driver is not None and not self.has("silent"):
            self._stop(driver)

    def _report(self, driver: RayDriver) -> Report | None:
        if driver.state is None:
            return None
        rows = {"rows": driver.rows, "total": ROWS} if driver.rows else {"rows": None}
        return report(driver.state, **rows, **{"reason": driver.cause, "updatedAt": self._now()})

    def _reconcile(self, body: Object) -> None:
        state = body.get("status", {}).get("jobDeploymentStatus", "")
        suspend = bool(body["spec"].get("suspend"))
        if state == "" and not suspend:
            own = f"{body['metadata']['name']}-{self.cluster.version}"
            self.accept(body, _selected(body) or own)
        elif state in ("Initializing", "Running") and suspend:
            self._interrupt(body)
            self._set_status(body, jobDeploymentStatus="Suspending")
        elif state == "Initializing":
            self._start_cluster(body)
        elif state == "Running":
            self._follow(body)
        elif state == "Suspending":
            self._drop_cluster(body)
            gone = {"rayClusterStatus": None, "rayClusterName": None, "jobStatus": ""}
            self._set_status(body, jobDeploymentStatus="Suspended", **gone)
        elif state == "Suspended" and not suspend:
            self._set_status(body, jobDeploymentStatus="")
        elif state in ("Complete", "Failed"):
            self._clean_up(body)

    def _interrupt(self, body: Object) -> None:
        """Stop the driver, which may still report the stop."""
        driver = self.drivers.get(body["status"].get("rayClusterName", ""))
        if driver is not None:
            self._stop(driver)

    def _stop(self, driver: RayDriver) -> None:
        if driver.state is not None and not driver.state.ended:
            driver.state, driver.cause = JobState.FAILED, "Interrupted"

    def accept(self, body: Object, name: str) -> None:
        """Put the finalizer on a new RayJob and name its RayCluster."""
        finalizers = {"finalizers": [FINALIZER]}
        self.cluster.patch("RayJob", body["metadata"]["name"], {"metadata": finalizers})
        self._set_status(body, jobDeploymentStatus="Initializing", rayClusterName=name)

    def _start_cluster(self, body: Object) -> None:
        name = body["status"]["rayClusterName"]
        cluster = self.cluster.get("RayCluster", name)
        if cluster is None and not _selected(body):
            self._make_cluster(body, name)
        if cluster is None or not self._start_pods(name, body["spec"]["rayClusterSpec"]):
            return
        if _selected(body):
            self.drivers[name] = RayDriver()
        head = {"head": {"podIP": "10.0.0.7", "serviceName": f"{name}-head-svc"}}
        self._set_status(body, jobDeploymentStatus="Running", rayClusterStatus=head)

    def _start_pods(self, cluster: str, spec: Object) -> bool:
        """Start the pods of a cluster. Return whether they have started."""
        secret = spec["authOptions"]["secretName"]
        if self.has("stuck"):
            return False
        lacks = self.cluster.get("Secret", secret) is None
        state = waiting("CreateContainerConfigError", f'secret "{secret}" not found')
        for pod in self._pods(cluster):
            status = state if lacks else {"containerStatuses": []}
            self.cluster.patch("Pod", pod["metadata"]["name"], {"status": status})
        return not lacks

    def _make_cluster(self, body: Object, name: str) -> None:
        owner = {"kind": "RayJob", "uid": body["metadata"]["uid"], "controller": True}
        metadata = {"name": name, "ownerReferences": [owner]}
        cluster = self.cluster.put({"kind": "RayCluster", "metadata": metadata})
        self.drivers[name] = RayDriver()
        for kind in ("head", "worker"):
            self.add_pod(body, cluster, kind)

    def add_pod(self, body: Object, cluster: Object, kind: str) -> None:
        """Add a pod of a RayJob's cluster."""
        labels = {key: body["metadata"]["labels"][key] for key in (NAME_LABEL, ATTEMPT_LABEL)}
        owner = {"kind": "RayCluster", "uid": cluster["metadata"]["uid"], "controller": True}
        metadata = {
            "name": f"{cluster['metadata']['name']}-{self.cluster.version}-{kind}",
            "labels": {
                **labels,
                DEVICES_LABEL: "1",
                "ray.io/cluster": cluster["metadata"]["name"],
                "ray.io/node-type": kind,
            },
            "ownerReferences": [owner],
        }
        state = waiting("ImagePullBackOff") if self.has("stuck") else {}
        status = placed(self._now(), **state)
        self.cluster.put({"kind": "Pod", "metadata": metadata, "spec": asking("2"),
                         "status": status})  # fmt: skip

    def _follow(self, body: Object) -> None:
        """Copy the job's status from Ray to the RayJob, and create a missing cluster again."""
        name = body["status"]["rayClusterName"]
        if self.cluster.get("RayCluster", name) is None:
            if _selected(body):
                return
            self._make_cluster(body, name)
        driver = self.drivers[name]
        if driver.state is not None and driver.state.ended:
            self.finish(body, driver.state)
        else:
            self._set_status(body, jobStatus=driver.ray_status)

    def finish(self, body: Object, state: JobState) -> None:
        """Mark the RayJob as ended: its driver has ended in this state."""
        reason = {"reason": "AppFailed"} if state == JobState.FAILED else {}
        self._set_status(
            body,
            jobStatus=state.value.upper(),
            jobDeploymentStatus=ENDS[state],
            endTime=self._now(),
            **reason,
        )

    def _clean_up(self, body: Object) -> None:
        if not body["spec"].get("shutdownAfterJobFinishes", True):
            return
        ended = datetime.fromisoformat(body["status"]["endTime"])
        if (self.cluster.now() - ended).total_seconds() >= body["spec"]["ttlSecondsAfterFinished"]:
            self._drop_cluster(body)

    def _drop_cluster(self, body: Object) -> None:
        cluster = self.cluster.get("RayCluster", body["status"]["rayClusterName"])
        if cluster is not None:
            self.cluster.delete("RayCluster", cluster["metadata"]["name"])

    def _pods(self, cluster: str) -> list[Object]:
        owner = self.cluster.get("RayCluster", cluster)
        uid = owner["metadata"]["uid"] if owner else None
        return [pod for pod in self.cluster.list("Pod")
                if pod["metadata"]["ownerReferences"][0]["uid"] == uid]  # fmt: skip

    def _note_success(self, cluster: str, driver: RayDriver) -> None:
        if driver.state == JobState.SUCCEEDED:
            self.succeeded.add(self._job_of(self.cluster.get("RayCluster", cluster)))

    def _job_of(self, cluster: Object | None) -> str | None:
        owner = owner_uid(cluster, "RayJob") if cluster else None
        ray_jobs = [one for one in self.cluster.list("RayJob") if one["metadata"]["uid"] == owner]
        return owner_uid(ray_jobs[0], "BatchInference") if ray_jobs else None

    def _set_status(self, body: Object, **status: Any) -> None:
        known = self.cluster.get("RayJob", body["metadata"]["name"])
        if known is not None and any(
            known.get("status", {}).get(key) != value for key, value in status.items()
        ):
            self.cluster.patch("RayJob", body["metadata"]["name"], {"status": status})

    def _now(self) -> str:
        return to_rfc3339(self.cluster.now())


def _selected(ray_job: Object) -> str:
    """Return the name of the cluster that a RayJob selects; empty if it has its own."""
    name: str = (ray_job["spec"].get("clusterSelector") or {}).get("ray.io/cluster", "")
    return name


@dataclass
class FakeDriver:
    """Gives scripted answers by the name of the RayJob. Drivers without answers are unreachable."""

    answers: dict[str, DriverAnswer] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    async def poll(self, namespace: str, ray_job: RayJobView, token: str) -> DriverAnswer:
        self.asked.append((namespace, ray_job.name, token))
        return self.answers.get(ray_job.name, DriverAnswer(reached=False))

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        self.stopped.append(ray_job.name)


@dataclass
class RayJobScript:
    """Takes the RayJob of one attempt through its states, one every ten seconds."""

    cluster: FakeCluster
    driver: FakeDriver
    name: str = "job"
    attempt: int = 1

    @property
    def ray_job(self) -> str:
        return f"{self.name}-{self.attempt}"

    async def run(self, last: JobState = JobState.SUCCEEDED, **fields: Any) -> None:
        """Take a RayJob from its creation to its end. `fields` belong to the last report."""
        await self.start()
        await self.step(**RUNNING)
        await self.answer(DriverAnswer(reached=True))
        await self.answer(_answer(JobState.PREPARING))
        for rows in (0, 40, 90):
            await self.answer(_answer(JobState.RUNNING, rows=rows, total=100))
        await self.answer(_answer(JobState.FINALIZING, rows=100, total=100))
        fields = {"updatedAt": "2026-03-01T12:01:00Z", **fields}
        await self.answer(_answer(last, rows=100, total=100, **fields))
        if body := self.cluster.get("RayJob", self.ray_job):
            FakeKubeRay(self.cluster).finish(body, last)
            await asyncio.sleep(10)

    async def start(self) -> None:
        """Accept the RayJob as soon as it exists."""
        await until(lambda: self.cluster.get("RayJob", self.ray_job))
        body = self.cluster.objects["RayJob", self.ray_job]
        FakeKubeRay(self.cluster).accept(body, f"{self.ray_job}-cluster")
        await asyncio.sleep(10)

    async def step(self, **status: Any) -> None:
        """Change the status of the RayJob."""
        self.cluster.patch("RayJob", self.ray_job, {"status": status})
        await asyncio.sleep(10)

    async def answer(self, answer: DriverAnswer) -> None:
        """Change the answer of the driver."""
        self.driver.answers[self.ray_job] = answer
        await asyncio.sleep(10)


def _answer(state: JobState, **fields: Any) -> DriverAnswer:
    return DriverAnswer(reached=True, report=report(state, **fields))
