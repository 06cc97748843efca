"""KubeRay, Kueue and the drivers of Ray jobs, as sequences of states that a test leads on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from batchinference.rendering import ATTEMPT_LABEL, GPUS_LABEL, NAME_LABEL
from batchinference.spec.report import JobState, Report
from batchinference_operator.reconcile.clock import stamp
from batchinference_operator.runtime.driver import Answer
from batchinference_operator.status.observations import RayJobView, owner_uid
from support.operator_objects import asking, placed, report, waiting
from support.simulated_server import Call, Object, SimulatedServer

FINALIZER = "ray.io/rayjob-finalizer"
ENDS = {JobState.SUCCEEDED: "Complete", JobState.FAILED: "Failed"}
ROWS = 800


@dataclass
class Driver:
    """The driver of a Ray job. Without a state it has not begun."""

    state: JobState | None = None
    rows: int = 0
    cause: str | None = None

    def go_on(self) -> None:
        """One step towards success."""
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
        """What Ray says of the job."""
        if self.state is None:
            return "PENDING"
        return self.state.value.upper() if self.state.ended else "RUNNING"


@dataclass
class SimulatedKubeRay:
    """Does what KubeRay does with a RayJob in HTTPMode: its states, its finalizer, its cluster."""

    server: SimulatedServer
    trouble: dict[str, float] = field(default_factory=dict)
    """Until when what is wrong: KubeRay is `away`, drivers are `silent`, new pods are `stuck`."""
    drivers: dict[str, Driver] = field(default_factory=dict)
    """By the name of the RayCluster."""
    succeeded: set[str | None] = field(default_factory=set)
    """The uids of the BatchInferences of which a driver has succeeded."""

    def has(self, trouble: str) -> bool:
        return self.trouble.get(trouble, 0.0) > self.server.seconds

    def act(self) -> None:
        """One look at every RayJob, unless KubeRay is away."""
        if self.has("away"):
            return
        for body in self.server.all("RayJob"):
            self._look(body)

    def drive(self) -> None:
        """Every driver goes on."""
        for name, driver in self.drivers.items():
            if self.server.get("RayCluster", name) is not None:
                driver.go_on()
                self._note(name, driver)

    def fail(self, cause: str) -> str | None:
        """A driver fails. Returns the uid of its BatchInference."""
        for name, driver in self.drivers.items():
            cluster = self.server.get("RayCluster", name)
            if cluster and driver.state is not None and not driver.state.ended:
                driver.state, driver.cause = JobState.FAILED, cause
                return self._job_of(cluster)
        return None

    def lose_head(self) -> None:
        """A head goes, and the driver with it. KubeRay makes another and submits the job anew."""
        for name in self.drivers:
            self.drivers[name] = Driver()

    def give_up(self, body: Object, reason: str) -> None:
        """KubeRay calls a RayJob failed, whatever becomes of its driver."""
        end = {"jobDeploymentStatus": "Failed", "reason": reason, "endTime": self._now()}
        self._say(body, **end)

    async def ask(self, namespace: str, ray_job: RayJobView, token: str) -> Answer:
        """The operator's way to the drivers."""
        fault = await Call("ask the driver")
        if fault or self.has("silent") or self.server.get("RayCluster", ray_job.cluster) is None:
            return Answer(reached=False)
        return Answer(reached=True, report=self._report(self.drivers[ray_job.cluster]))

    async def stop(self, namespace: str, ray_job: RayJobView, token: str) -> None:
        fault = await Call("stop the driver")
        driver = self.drivers.get(ray_job.cluster)
        if not fault and driver is not None and not self.has("silent"):
            self._stop(driver)

    def _report(self, driver: Driver) -> Report | None:
        if driver.state is None:
            return None
        rows = {"rows": driver.rows, "total": ROWS} if driver.rows else {"rows": None}
        said = {"reason": driver.cause, "updatedAt": self._now()}
        return report(driver.state, **rows, **said)

    def _look(self, body: Object) -> None:
        if "deletionTimestamp" in body["metadata"]:
            self.server.let_go(body)
            return
        state = body.get("status", {}).get("jobDeploymentStatus", "")
        suspend = bool(body["spec"].get("suspend"))
        if state == "" and not suspend:
            self._begin(body)
        elif state in ("Initializing", "Running") and suspend:
            self._interrupt(body)
            self._say(body, jobDeploymentStatus="Suspending")
        elif state == "Initializing":
            self._start(body)
        elif state == "Running":
            self._follow(body)
        elif state == "Suspending":
            self._drop_cluster(body)
            gone = {"rayClusterStatus": None, "rayClusterName": None, "jobStatus": ""}
            self._say(body, jobDeploymentStatus="Suspended", **gone)
        elif state == "Suspended" and not suspend:
            self._say(body, jobDeploymentStatus="")
        elif state in ("Complete", "Failed"):
            self._clean_up(body)

    def _interrupt(self, body: Object) -> None:
        """The driver is told to stop, and may be heard to say so."""
        driver = self.drivers.get(body["status"].get("rayClusterName", ""))
        if driver is not None:
            self._stop(driver)

    def _stop(self, driver: Driver) -> None:
        if driver.state is not None and not driver.state.ended:
            driver.state, driver.cause = JobState.FAILED, "Interrupted"

    def _begin(self, body: Object) -> None:
        name = f"{body['metadata']['name']}-{self.server.version}"
        self.server.change(body, metadata={"finalizers": [FINALIZER]})
        self._say(body, jobDeploymentStatus="Initializing", rayClusterName=name)

    def _start(self, body: Object) -> None:
        name = body["status"]["rayClusterName"]
        if self.server.get("RayCluster", name) is None:
            self._make_cluster(body, name)
            return
        secret = body["spec"]["rayClusterSpec"]["authOptions"]["secretName"]
        if self.has("stuck"):
            return
        lacks = self.server.get("Secret", secret) is None
        state = waiting("CreateContainerConfigError", f'secret "{secret}" not found')
        for pod in self._pods(name):
            self.server.change(pod, status=state if lacks else {"containerStatuses": []})
        if lacks:
            return
        head = {"head": {"podIP": "10.0.0.7", "serviceName": f"{name}-head-svc"}}
        self._say(body, jobDeploymentStatus="Running", rayClusterStatus=head)

    def _make_cluster(self, body: Object, name: str) -> None:
        owner = {"kind": "RayJob", "uid": body["metadata"]["uid"], "controller": True}
        metadata = {"name": name, "ownerReferences": [owner]}
        cluster = self.server.put({"kind": "RayCluster", "metadata": metadata})
        self.drivers[name] = Driver()
        for kind in ("head", "worker"):
            self.add_pod(body, cluster, kind)

    def add_pod(self, body: Object, cluster: Object, kind: str) -> None:
        """A pod of a RayJob's cluster."""
        labels = {key: body["metadata"]["labels"][key] for key in (NAME_LABEL, ATTEMPT_LABEL)}
        owner = {"kind": "RayCluster", "uid": cluster["metadata"]["uid"], "controller": True}
        metadata = {
            "name": f"{cluster['metadata']['name']}-{self.server.version}-{kind}",
            "labels": {
                **labels,
                GPUS_LABEL: "1",
                "ray.io/cluster": cluster["metadata"]["name"],
                "ray.io/node-type": kind,
            },
            "ownerReferences": [owner],
        }
        state = waiting("ImagePullBackOff") if self.has("stuck") else {}
        status = placed(self._now(), **state)
        self.server.put({"kind": "Pod", "metadata": metadata, "spec": asking("2"),
                         "status": status})  # fmt: skip

    def _follow(self, body: Object) -> None:
        """HTTPMode: KubeRay asks Ray; a cluster that is not there it makes again."""
        name = body["status"]["rayClusterName"]
        if self.server.get("RayCluster", name) is None:
            self._make_cluster(body, name)
        driver = self.drivers[name]
        said: Object = {"jobStatus": driver.ray_status}
        if driver.state is not None and driver.state.ended:
            said |= {"jobDeploymentStatus": ENDS[driver.state], "endTime": self._now()}
        if driver.state == JobState.FAILED:
            said["reason"] = "AppFailed"
        self._say(body, **said)

    def _clean_up(self, body: Object) -> None:
        ended = datetime.fromisoformat(body["status"]["endTime"])
        if (self.server.now() - ended).total_seconds() >= body["spec"]["ttlSecondsAfterFinished"]:
            self._drop_cluster(body)

    def _drop_cluster(self, body: Object) -> None:
        cluster = self.server.get("RayCluster", body["status"]["rayClusterName"])
        if cluster is not None:
            self.server.delete(cluster)

    def _pods(self, cluster: str) -> list[Object]:
        owner = self.server.get("RayCluster", cluster)
        uid = owner["metadata"]["uid"] if owner else None
        return [pod for pod in self.server.all("Pod")
                if pod["metadata"]["ownerReferences"][0]["uid"] == uid]  # fmt: skip

    def _note(self, cluster: str, driver: Driver) -> None:
        if driver.state == JobState.SUCCEEDED:
            self.succeeded.add(self._job_of(self.server.get("RayCluster", cluster)))

    def _job_of(self, cluster: Object | None) -> str | None:
        owner = owner_uid(cluster, "RayJob") if cluster else None
        ray_jobs = [one for one in self.server.all("RayJob") if one["metadata"]["uid"] == owner]
        return owner_uid(ray_jobs[0], "BatchInference") if ray_jobs else None

    def _say(self, body: Object, **status: Any) -> None:
        known = self.server.get("RayJob", body["metadata"]["name"])
        if known is not None and any(
            known.get("status", {}).get(key) != value for key, value in status.items()
        ):
            self.server.change(known, status=status)

    def _now(self) -> str:
        return stamp(self.server.now())
