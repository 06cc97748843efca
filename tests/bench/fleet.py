"""Measures the operator with 1,000 simultaneous new jobs and with 5,000 idle jobs.

The operator is a separate process. The API server is real and has no KubeRay. `make fleet` runs
this.

The rate at which the operator creates the objects of new jobs is compared with a plain client that
creates the same objects with the same number of concurrent requests. The two alternate. Each
measurement has a new API server, because an API server becomes slower with each stored object. A
job counts when its Secret, the last of its objects, exists. The program prints one line per figure
and fails if a figure is beyond its limit.

The case `pods` counts the requests of the operator while the pods of 100 jobs are created.

`make fleet FLEET=attack` instead measures how far one namespace can harm the others: 40 drivers
that answer after 4.8 seconds among 200 normal ones, and 200 resources of the largest size that the
API server stores. FLEET may also be a single case: existing, arriving, rest or pods.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import psutil
import urllib3
import yaml
from plain_client import PlainClient
from rounds import ROUNDS
from starting_pods import PULL_SECONDS, StartingJob
from stop_signals import exit_on_signals

from batchinference.spec.quantities import memory_bytes
from batchinference_operator.reconcile.requeue import POLL_SECONDS
from support.cluster.chart import chart_without_dependencies, container, kuberay_definition
from support.cluster.deployment import CHART
from support.cluster.kubectl import eventually
from support.engines import kubebuilder_assets
from support.operator.process import OperatorProcess
from support.operator.simulated_ray_job import SimulatedJob
from support.servers.api_server import ApiServer, Namespace, new_namespace, running
from support.servers.dashboard import Dashboard, served

BURST, FLEET = 1000, 5000
RATIO = {"existing": 0.65, "arriving": 0.8}
"""The minimum ratio of the operator's rate to the plain client's rate."""
NOISE = 0.05
"""The variation of a ratio from run to run."""
MIB = {BURST: 120.0, FLEET: 150.0}
"""Maximum memory by the number of idle jobs."""
IDLE_PERCENT = 1.0
"""Maximum CPU with 5,000 idle jobs, in percent of a core."""
IDLE_SECONDS = 30.0
TIMEOUT = 240.0
COUNT_SECONDS = 0.25
"""The time between two counts of objects: each costs the API server CPU time."""
WARM_UP, SERVER_IDLE = 20, 0.5
"""Jobs that are created before a measurement, and the CPU seconds in 3 seconds below which the API
server is idle."""
HONEST, HOSTILE, SLOW_SECONDS = 200, 40, 4.8
SETTLE_SECONDS, MEASURE_SECONDS = 60.0, 30.0
POLL_RATIO = 0.9
"""The minimum ratio of the polls of honest drivers to their polls without an attack."""
LARGEST, HONEST_SECONDS = 200, 10.0
STARTING, REQUESTS = 100, 20.0
"""The number of jobs whose pods are created, and the maximum number of requests for each."""


@dataclass
class Results:
    """The names of figures beyond their limits."""

    beyond: list[str] = field(default_factory=list)

    def record(self, name: str, value: float, unit: str, limit: float, more: str = "") -> None:
        """Print a figure and record it if it is beyond its limit. The limit is a minimum for
        ratios, less NOISE, and a maximum for other units."""
        good = value >= limit - NOISE if unit == "ratio" else value <= limit
        print(f"fleet {name} {unit}={value:.2f} limit={limit:g} {more}".rstrip(), flush=True)
        if not good:
            self.beyond.append(name)


@dataclass
class Bench:
    """The servers and clients of a measurement, and the results."""

    server: ApiServer
    client: PlainClient
    dashboard: Dashboard
    operators: Callable[..., OperatorProcess]
    results: Results

    def namespace(self, name: str) -> Namespace:
        return new_namespace(self.server, name)


def main() -> None:
    results = Results()
    for case in CASES.get(os.environ.get("FLEET", ""), CASES[""]):
        case(results)
    if results.beyond:
        raise SystemExit(f"beyond the limit: {', '.join(results.beyond)}")


def on_one_server(case: Callable[[Bench], None], *options: str) -> Callable[[Results], None]:
    """Return a case that runs with its own API server, which gets these options."""

    def run(results: Results) -> None:
        with (
            tempfile.TemporaryDirectory() as directory,
            bench(Path(directory), results, *options) as result,
        ):
            case(result)

    return run


@contextmanager
def bench(directory: Path, results: Results, *options: str) -> Iterator[Bench]:
    chart = chart_without_dependencies(directory)
    made: list[OperatorProcess] = []
    with running(kubebuilder_assets(), directory, *options) as server, served() as dashboard:
        for file in ("crd.yaml", "schedule-crd.yaml"):
            server.install_crd(yaml.safe_load((CHART / "files" / file).read_text()))
        for plural in ("rayjobs", "rayclusters"):
            server.install_crd(kuberay_definition(plural))

        def operator(*namespaces: str) -> OperatorProcess:
            system = new_namespace(server, f"system-of-{namespaces[0]}").name
            values = {"watchNamespaces": list(namespaces),
                      "fullnameOverride": system}  # fmt: skip
            manifests = chart.manifests(values, "--namespace", system)
            location = directory / system
            location.mkdir()
            made.append(OperatorProcess(server, manifests, location, dashboard))
            return made[-1]

        try:
            yield Bench(server, PlainClient(server), dashboard, operator, results)
        finally:
            for one in made:
                one.close()


def existing(results: Results) -> None:
    compare(results, "existing", plain_existing, ours_existing)


def arriving(results: Results) -> None:
    compare(results, "arriving", plain_all, ours_arriving)


Rate = Callable[[Bench, Namespace], float]


def compare(results: Results, case: str, plain: Rate, ours: Rate) -> None:
    """Measure the operator and the plain client alternately, and record the median of the ratios of
    the rounds: the speed of the machine may change from round to round."""
    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    for number in range(ROUNDS):
        for who, work in (("plain", plain), ("ours", ours)):
            rates[who].append(measured(results, f"{case}-{who}", work))
            print(f"round {number + 1}: {case} {who} {rates[who][-1]:.1f} jobs/s", flush=True)
    ratios = [ours / plain for ours, plain in zip(rates["ours"], rates["plain"], strict=True)]
    plain_rate, ours_rate = (statistics.median(rates[who]) for who in ("plain", "ours"))
    more = f"ours={ours_rate:.1f}/s plain={plain_rate:.1f}/s"
    results.record(case, statistics.median(ratios), "ratio", RATIO[case], more)


def measured(results: Results, name: str, work: Rate) -> float:
    """Return the rate of `work` with a new API server, when it is idle after the first
    requests of each kind."""
    with tempfile.TemporaryDirectory() as directory, bench(Path(directory), results) as result:
        asyncio.run(result.client.create_all(result.namespace("warm-up").name, range(WARM_UP)))
        quiet(result.server.process.pid, SERVER_IDLE)
        return work(result, result.namespace(name))


def plain_existing(result: Bench, namespace: Namespace) -> float:
    uids = asyncio.run(result.client.create_jobs(namespace.name, range(BURST)))
    return rate(result.client.create_objects(namespace.name, uids))


def plain_all(result: Bench, namespace: Namespace) -> float:
    return rate(result.client.create_all(namespace.name, range(BURST)))


def rate(work: Awaitable[object]) -> float:
    async def timed() -> float:
        began = time.monotonic()
        await work
        return BURST / (time.monotonic() - began)

    return asyncio.run(timed())


def ours_existing(result: Bench, namespace: Namespace) -> float:
    asyncio.run(result.client.create_jobs(namespace.name, range(BURST)))
    operator = result.operators(namespace.name)
    operator.start()
    eventually("the first object", lambda: count(namespace, "ConfigMap"), TIMEOUT, 0.02)
    began = time.monotonic()
    served_all(namespace, BURST)
    found_rate = BURST / (time.monotonic() - began)
    print_usage(result, operator, "existing")
    end(result, operator)
    return found_rate


def ours_arriving(result: Bench, namespace: Namespace) -> float:
    operator = result.operators(namespace.name)
    operator.start()
    asyncio.run(result.client.create_jobs(namespace.name, range(BURST, BURST + 1)))
    served_all(namespace, 1)
    began = time.monotonic()
    asyncio.run(result.client.create_jobs(namespace.name, range(BURST)))
    served_all(namespace, BURST + 1)
    found_rate = BURST / (time.monotonic() - began)
    print_usage(result, operator, "arriving")
    end(result, operator)
    return found_rate


def print_usage(result: Bench, operator: OperatorProcess, case: str) -> None:
    """Wait until the operator is idle, and print its CPU time, its memory and its requests."""
    cpu = 1000 * quiet(operator.pid) / BURST
    calls = requests(result, operator).total() / BURST
    memory = peak_mib(operator)
    print(f"{case} cpu={cpu:.2f} ms/job peak={memory:.1f} MiB requests={calls:.2f}/job", flush=True)


def requests(result: Bench, operator: OperatorProcess) -> Counter[str]:
    """Return the number of requests of an operator by verb and resource, without watches."""
    targets = (
        (one["verb"], one.get("objectRef", {}).get("resource", "discovery"))
        for one in result.server.requests_of(operator.user)
    )
    return Counter(
        f"{verb} {resource}"
        for verb, resource in targets
        if verb != "watch" and resource != "leases"
    )


def served_all(namespace: Namespace, jobs: int) -> None:
    """Wait until this many jobs have all of their objects."""
    eventually(
        f"{jobs} Secrets", lambda: count(namespace, "Secret") >= jobs, TIMEOUT, COUNT_SECONDS
    )
    assert count(namespace, "ConfigMap") == count(namespace, "RayJob") == jobs


def count(namespace: Namespace, kind: str) -> int:
    page = namespace.server.get(namespace.path(kind), limit="1")
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))


def idle_jobs(result: Bench) -> None:
    namespace = result.namespace("at-rest")
    operator = result.operators(namespace.name)
    operator.start()
    for before, jobs in ((0, BURST), (BURST, FLEET)):
        asyncio.run(result.client.create_jobs(namespace.name, range(before, jobs)))
        served_all(namespace, jobs)
        quiet(operator.pid)
        result.results.record(f"memory_{jobs}", mib(operator), "MiB", MIB[jobs])
    end(result, operator)
    operator.start()
    began = time.monotonic()
    cpu = quiet(operator.pid)
    more = f"start={time.monotonic() - began:.1f}s cpu={cpu:.1f}s"
    result.results.record("memory_after_start", mib(operator), "MiB", MIB[FLEET], more)
    before = cpu_seconds(operator.pid)
    time.sleep(IDLE_SECONDS)
    used = cpu_seconds(operator.pid) - before
    result.results.record("idle", 100 * used / IDLE_SECONDS, "percent", IDLE_PERCENT)
    end(result, operator)


def starting_pods(result: Bench) -> None:
    """Count the requests of the operator from the creation of jobs until their drivers run."""
    namespace = result.namespace("starting")
    operator = result.operators(namespace.name)
    operator.start()
    asyncio.run(result.client.create_jobs(namespace.name, range(STARTING)))
    served_all(namespace, STARTING)
    jobs = [StartingJob(namespace, f"job-{number:05d}", result.dashboard)
            for number in range(STARTING)]  # fmt: skip
    for step in (StartingJob.create_cluster, StartingJob.create_pods, StartingJob.wait_for_a_node,
                 StartingJob.schedule, StartingJob.pull_image):  # fmt: skip
        for job in jobs:
            step(job)
    time.sleep(PULL_SECONDS)
    for step in (StartingJob.start_containers, StartingJob.become_ready):
        for job in jobs:
            step(job)
    for job in jobs:
        job.status("Running")
    counts = requests(result, operator)
    more = ", ".join(f"{what}: {count_}" for what, count_ in counts.most_common())
    result.results.record("pods", counts.total() / STARTING, "requests", REQUESTS, more)
    end(result, operator)


def slow_drivers(value: Bench) -> None:
    """Check that slow drivers do not reduce the polls of honest drivers."""
    spaces = {"honest": (HONEST, 0.0), "hostile": (HOSTILE, SLOW_SECONDS)}
    for name in spaces:
        value.namespace(name)
    operator = value.operators(*spaces)
    operator.start()
    for name, (count_, _) in spaces.items():
        asyncio.run(value.client.create_jobs(name, range(count_)))
    for name, (count_, seconds) in spaces.items():
        run_drivers(value, Namespace(value.server, name), count_, seconds)
    time.sleep(SETTLE_SECONDS)
    before = polls(value, "honest")
    time.sleep(MEASURE_SECONDS)
    rate_ = (polls(value, "honest") - before) / MEASURE_SECONDS
    value.results.record("polls_under_attack", rate_ / (HONEST / POLL_SECONDS), "ratio", POLL_RATIO)
    end(value, operator)


def run_drivers(result: Bench, namespace: Namespace, jobs: int, seconds: float) -> None:
    """Make all jobs of a namespace run, with drivers that answer after this many seconds."""
    served_all(namespace, jobs)
    for number in range(jobs):
        job = SimulatedJob(namespace, f"job-{number:05d}", result.dashboard)
        job.start_cluster()
        job.start_driver()
        job.report("running", progress={"rows": number})
        result.dashboard.slow[job.host] = seconds


def polls(result: Bench, namespace: str) -> int:
    hosts = result.dashboard.answered
    return sum(count_ for host, count_ in hosts.items() if f".{namespace}.svc." in host)


def largest_jobs(result: Bench) -> None:
    """Measure the peak memory with jobs of the largest size, half of which exist when the operator
    starts, and how long a job of another namespace then waits for its first object.

    The API server takes seconds to write the status of such a job, so most of them have none at the
    end."""
    namespace, honest = result.namespace("largest"), result.namespace("honest")
    asyncio.run(result.client.create_largest(namespace.name, range(LARGEST // 2)))
    operator = result.operators(namespace.name, honest.name)
    operator.start()
    asyncio.run(result.client.create_largest(namespace.name, range(LARGEST // 2, LARGEST)))
    eventually(f"{LARGEST} known jobs", lambda: known_jobs(operator) == LARGEST, TIMEOUT, 1)
    begin = time.monotonic()
    asyncio.run(result.client.create_jobs(honest.name, range(1)))
    eventually("a ConfigMap", lambda: count(honest, "ConfigMap"), TIMEOUT, 0.1)
    result.results.record("start_with_largest", time.monotonic() - begin, "seconds", HONEST_SECONDS)
    time.sleep(SETTLE_SECONDS)
    limit = container(operator.manifests)["resources"]["limits"]["memory"]
    more = f"cpu={cpu_seconds(operator.pid):.1f}s"
    result.results.record(
        "peak_of_largest", peak_mib(operator), "MiB", memory_bytes(limit) / 2**20, more
    )
    end(result, operator)


def known_jobs(operator: OperatorProcess) -> int:
    """Return the number of jobs in the cache of the operator, from its metrics."""
    metrics = urllib3.request("GET", operator.health.replace("/healthz", "/metrics")).data.decode()
    lines = (line for line in metrics.splitlines() if line.startswith("batchinference_jobs{"))
    return sum(int(float(line.split()[-1])) for line in lines)


def peak_mib(operator: OperatorProcess) -> float:
    status = Path(f"/proc/{operator.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**10


def quiet(process: int, idle: float = 0.1) -> float:
    """Wait until a process uses less than `idle` seconds of CPU in 3 seconds. Return the seconds of
    CPU that it has used so far."""
    seen = [-inf]

    def is_idle() -> bool:
        seen.append(cpu_seconds(process))
        return seen[-1] - seen[-2] < idle

    eventually("an idle process", is_idle, TIMEOUT, 3)
    return seen[-1]


def cpu_seconds(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def mib(operator: OperatorProcess) -> float:
    return float(psutil.Process(operator.pid).memory_info().rss / 2**20)


def end(result: Bench, operator: OperatorProcess) -> None:
    """Stop the operator. A warning or an error in its log fails the benchmark."""
    operator.stop()
    wrong = [line for line in operator.output().splitlines() if '"level": "info"' not in line]
    if wrong:
        print("\n".join(wrong[:20]))
        result.results.beyond.append(f"{len(wrong)} errors in the log")


REST, PODS = on_one_server(idle_jobs), on_one_server(starting_pods)
NO_CACHE = "--watch-cache=false"
"""The cache of the API server takes 100 MB for each job of the largest size."""
ATTACK = on_one_server(slow_drivers), on_one_server(largest_jobs, NO_CACHE)
CASES: dict[str, tuple[Callable[[Results], None], ...]] = {
    "": (existing, arriving, REST, PODS),
    "existing": (existing,),
    "arriving": (arriving,),
    "rest": (REST,),
    "pods": (PODS,),
    "attack": ATTACK,
}


if __name__ == "__main__":
    exit_on_signals()
    main()
