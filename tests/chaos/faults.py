"""Faults. Each kills a part of one job, or a component that all jobs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from chaos.store import CODE_MOUNT, ChaosStore
from support.cluster.disruptions import restart_api_server
from support.cluster.kubectl import Kubectl
from support.cluster.waits import kill, pods

MAX_DOWNTIME_SECONDS = 15.0
"""The maximum downtime of the S3 server."""
STORM_SECONDS, STORM_SHARE = 8.0, 0.5


@dataclass(frozen=True)
class Site:
    """The targets of faults: kubectl in the namespaces of the jobs, the operator and KubeRay, and
    the object store."""

    jobs: Kubectl
    operator: Kubectl
    kuberay: Kubectl
    store: ChaosStore


class NoTarget(Exception):
    """The target of a fault does not exist at the moment."""


def kill_worker(site: Site, job: str, random: Random) -> None:
    kill(site.jobs, [_one_of(pods(site.jobs, job, "worker"), random)])


def kill_all_workers(site: Site, job: str, random: Random) -> None:
    _kill_all(site.jobs, pods(site.jobs, job, "worker"))


def kill_head(site: Site, job: str, random: Random) -> None:
    _kill_all(site.jobs, pods(site.jobs, job, "head"))


def kill_driver(site: Site, job: str, random: Random) -> None:
    _kill_process(site, pods(site.jobs, job, "head"), r"python\S* \S*batchinference run", random)


def kill_ray_process(site: Site, job: str, random: Random) -> None:
    """Kill a Ray task or actor: one of the job's or one of Ray's own."""
    _kill_process(site, pods(site.jobs, job, "worker"), "^ray::", random)


def kill_kuberay(site: Site, job: str, random: Random) -> None:
    _kill_all(site.kuberay, _names(site.kuberay, "app.kubernetes.io/component=kuberay-operator"))


def kill_operator(site: Site, job: str, random: Random) -> None:
    _kill_all(site.operator, _names(site.operator))


def kill_api_server(site: Site, job: str, random: Random) -> None:
    restart_api_server()


def kill_s3_server(site: Site, job: str, random: Random) -> None:
    site.store.kill(away=random.uniform(0.5, MAX_DOWNTIME_SECONDS))


def disturb_connections(site: Site, job: str, random: Random) -> None:
    site.store.storm(STORM_SECONDS, STORM_SHARE)


Inject = Callable[[Site, str, Random], None]
"""Injects a fault into the job of this name, or raises NoTarget."""


@dataclass(frozen=True)
class Fault:
    """A fault. Two `exclusive` faults are never injected at the same time, because each needs the
    component that the other one disables."""

    name: str
    inject: Inject
    shared: bool = False
    exclusive: bool = False


FAULTS = (
    Fault("worker", kill_worker),
    Fault("all workers", kill_all_workers),
    Fault("head", kill_head),
    Fault("driver process", kill_driver),
    Fault("Ray process", kill_ray_process),
    Fault("KubeRay", kill_kuberay, shared=True),
    Fault("operator", kill_operator, shared=True),
    Fault("API server", kill_api_server, shared=True, exclusive=True),
    Fault("S3 server", kill_s3_server, shared=True, exclusive=True),
    Fault("connections", disturb_connections, shared=True),
)


def _names(kubectl: Kubectl, selector: str = "") -> list[str]:
    return [text["metadata"]["name"] for text in kubectl.list("pods", selector)]


def _one_of(names: list[str], random: Random) -> str:
    if not names:
        raise NoTarget
    return random.choice(sorted(names))


def _kill_all(kubectl: Kubectl, names: list[str]) -> None:
    if not names:
        raise NoTarget
    kill(kubectl, names)


def _kill_process(site: Site, names: list[str], pattern: str, random: Random) -> None:
    program = f"{CODE_MOUNT['mountPath']}/kill_process.py"
    seed = str(random.randrange(1 << 30))
    try:
        site.jobs("exec", _one_of(names, random), "--", "python3", program, pattern, seed)
    except AssertionError as error:  # no such process, or no such pod
        raise NoTarget from error
