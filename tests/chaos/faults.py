"""Faults. Each kills a part of one job, or a component that all jobs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from chaos.store import CODE_VOLUME, ChaosStore
from support.cluster.disruptions import restart_api_server
from support.cluster.kubectl import Kubectl
from support.cluster.waits import kill, pods

LONGEST_AWAY = 15.0
"""Maximum seconds for which the S3 server is away."""
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


def a_worker(site: Site, job: str, random: Random) -> None:
    kill(site.jobs, [_one_of(pods(site.jobs, job, "worker"), random)])


def all_workers(site: Site, job: str, random: Random) -> None:
    _kill_all(site.jobs, pods(site.jobs, job, "worker"))


def the_head(site: Site, job: str, random: Random) -> None:
    _kill_all(site.jobs, pods(site.jobs, job, "head"))


def the_driver(site: Site, job: str, random: Random) -> None:
    _kill_process(site, pods(site.jobs, job, "head"), r"python\S* \S*batchinference run", random)


def a_process(site: Site, job: str, random: Random) -> None:
    """Kill a Ray task or actor: one of the job's or one of Ray's own."""
    _kill_process(site, pods(site.jobs, job, "worker"), "^ray::", random)


def kuberay(site: Site, job: str, random: Random) -> None:
    _kill_all(site.kuberay, _names(site.kuberay, "app.kubernetes.io/component=kuberay-operator"))


def operator(site: Site, job: str, random: Random) -> None:
    _kill_all(site.operator, _names(site.operator))


def api_server(site: Site, job: str, random: Random) -> None:
    restart_api_server()


def s3_server(site: Site, job: str, random: Random) -> None:
    site.store.kill(away=random.uniform(0.5, LONGEST_AWAY))


def connections(site: Site, job: str, random: Random) -> None:
    site.store.storm(STORM_SECONDS, STORM_SHARE)


Inject = Callable[[Site, str, Random], None]
"""Injects a fault into the job of this name, or raises NoTarget."""


@dataclass(frozen=True)
class Fault:
    """A fault. One with `alone` is never injected during another such fault, because that needs
    what it takes away."""

    name: str
    inject: Inject
    shared: bool = False
    alone: bool = False


FAULTS = (
    Fault("worker", a_worker),
    Fault("all workers", all_workers),
    Fault("head", the_head),
    Fault("driver process", the_driver),
    Fault("Ray process", a_process),
    Fault("KubeRay", kuberay, shared=True),
    Fault("operator", operator, shared=True),
    Fault("API server", api_server, shared=True, alone=True),
    Fault("S3 server", s3_server, shared=True, alone=True),
    Fault("connections", connections, shared=True),
)


def _names(kubectl: Kubectl, selector: str = "") -> list[str]:
    return [found["metadata"]["name"] for found in kubectl.list("pods", selector)]


def _one_of(names: list[str], random: Random) -> str:
    if not names:
        raise NoTarget
    return random.choice(sorted(names))


def _kill_all(kubectl: Kubectl, names: list[str]) -> None:
    if not names:
        raise NoTarget
    kill(kubectl, names)


def _kill_process(site: Site, names: list[str], pattern: str, random: Random) -> None:
    program = f"{CODE_VOLUME['mountPath']}/kill_process.py"
    seed = str(random.randrange(1 << 30))
    try:
        site.jobs("exec", _one_of(names, random), "--", "python3", program, pattern, seed)
    except AssertionError as error:  # no such process, or no such pod
        raise NoTarget from error
