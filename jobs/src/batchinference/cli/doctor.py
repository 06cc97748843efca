"""The command `doctor`: checks the requirements of jobs on this machine and on the cluster."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata, util

from batchinference import __version__
from batchinference.api.kubernetes import ClusterError, Kubernetes
from batchinference.cli import exits
from batchinference.cli.printing import Format, print_data, print_table
from batchinference.spec.job import API_VERSION

PACKAGES = {
    "ray": "./jobs[pipeline]",
    "torch": "./jobs[pipeline]",
    "transformers": "./jobs[pipeline]",
    "torchvision": "./jobs[vision]",
    "aiohttp": "./jobs[runtimes]",
    "soundfile": "./jobs[formats]",
    "kubernetes": "./jobs[cluster]",
}
"""Packages that jobs need, with the extra that installs them."""
REQUIRED = ("ray", "torch", "transformers")
MIN_PYTHON = (3, 11)
MIN_DISK = 5 << 30
"""Free bytes in the directory to which Ray writes logs and spills objects."""
MIN_MEMORY = 4 << 30
_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")


class Result(StrEnum):
    """The result of a check. Only a failed check prevents jobs on this machine."""

    OK = "ok"
    NOTE = "note"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """What a check has found, and how to fix it."""

    check: str
    result: Result
    found: str
    advice: str = ""


def examine(namespace: str | None, context: str | None, form: Format) -> int:
    """Run all checks, print their findings, and return the exit code."""
    findings = [*_check_machine(), *_check_cluster(namespace, context)]
    if form is Format.TEXT:
        rows = [(each.result.value, each.check, _message(each)) for each in findings]
        print_table([("RESULT", "CHECK", "FOUND"), *rows])
    else:
        print_data([asdict(each) for each in findings], form)
    failed = any(each.result is Result.FAILED for each in findings)
    return exits.JOB_FAILED if failed else exits.SUCCESS


def _message(finding: Finding) -> str:
    return f"{finding.found}. {finding.advice}" if finding.advice else finding.found


def _check_machine() -> Iterator[Finding]:
    version = platform.python_version()
    good = sys.version_info[:2] >= MIN_PYTHON
    advice = "" if good else "Install Python 3.11 or later"
    yield Finding("Python", Result.OK if good else Result.FAILED, version, advice)
    yield Finding("batchinference", Result.OK, __version__)
    for package, extra in PACKAGES.items():
        yield _package(package, extra)
    yield _local_gpus()
    yield _disk()
    yield _memory()


def _package(name: str, extra: str) -> Finding:
    if util.find_spec(name) is not None:
        return Finding(name, Result.OK, metadata.version(name))
    missing = Result.FAILED if name in REQUIRED else Result.NOTE
    return Finding(name, missing, "not installed", f"pip install '{extra}' in a checkout")


def _local_gpus() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("GPUs", Result.NOTE, "none: no nvidia-smi", "Steps run on the CPU")
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=10)  # noqa: S603, PLW1510
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("GPUs", Result.NOTE, str(error), "Check the driver with nvidia-smi")
    names = [line.partition(" (UUID")[0] for line in listed.stdout.splitlines()]
    if not names:
        return Finding("GPUs", Result.NOTE, "none found by nvidia-smi", "Check the driver")
    return Finding("GPUs", Result.OK, ", ".join(names))


def _disk() -> Finding:
    directory = tempfile.gettempdir()
    free = shutil.disk_usage(directory).free
    found = f"{free / 2**30:.1f} Gi free in {directory}"
    if free >= MIN_DISK:
        return Finding("disk", Result.OK, found)
    advice = "Free some space, or set TMPDIR to a larger file system"
    return Finding("disk", Result.NOTE, found, advice)


def _memory() -> Finding:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        available = int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return Finding("memory", Result.NOTE, "unknown")
    found = f"{available / 2**30:.1f} Gi available"
    low = available < MIN_MEMORY
    return Finding("memory", Result.NOTE if low else Result.OK, found, "Close programs" * low)


def _check_cluster(namespace: str | None, context: str | None) -> Iterator[Finding]:
    try:
        cluster = Kubernetes(namespace, context)
        version = cluster.request("GET", "/version")["gitVersion"]
    except ClusterError as error:
        yield Finding("cluster", Result.NOTE, str(error))
        return
    place = f"Kubernetes {version} at {cluster.host}, namespace {cluster.namespace}"
    yield Finding("cluster", Result.OK, place)
    yield _resources(cluster, "BatchInference", API_VERSION, "Install the chart: docs/cluster.md")
    yield _resources(cluster, "KubeRay", "ray.io/v1", "Install the chart, which contains KubeRay")
    yield _check_or_note("operator", lambda: _operator(cluster))
    yield _check_or_note("GPUs of nodes", lambda: _node_gpus(cluster))


def _resources(cluster: Kubernetes, name: str, group: str, advice: str) -> Finding:
    try:
        found = cluster.request("GET", f"/apis/{group}")["resources"]
    except ClusterError as error:
        return Finding(f"{name} resources", Result.NOTE, str(error), advice)
    names = ", ".join(sorted({each["name"] for each in found if "/" not in each["name"]}))
    return Finding(f"{name} resources", Result.OK, f"{group}: {names}")


def _check_or_note(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except ClusterError as error:
        return Finding(name, Result.NOTE, str(error), "Ask an administrator of the cluster")


def _operator(cluster: Kubernetes) -> Finding:
    label = "app.kubernetes.io%2Fname%3Dbatch-inference-operator"
    path = f"/apis/apps/v1/deployments?labelSelector={label}"
    found = cluster.request("GET", path)["items"]
    if not found:
        return Finding("operator", Result.NOTE, "not found", "Install the chart: docs/cluster.md")
    ready = sum(each.get("status", {}).get("readyReplicas", 0) for each in found)
    place = f"{found[0]['metadata']['namespace']}/{found[0]['metadata']['name']}"
    if not ready:
        return Finding("operator", Result.NOTE, f"{place} is not ready", "See its pods and log")
    return Finding("operator", Result.OK, f"{place}, {ready} replica(s) ready")


def _node_gpus(cluster: Kubernetes) -> Finding:
    nodes = cluster.request("GET", "/api/v1/nodes")["items"]
    counts: dict[str, int] = {}
    for node in nodes:
        for name, count in node.get("status", {}).get("allocatable", {}).items():
            if name in _GPUS:
                counts[name] = counts.get(name, 0) + int(count)
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    advice = "" if found else "Jobs with resources.gpu wait for a node with GPUs"
    result = Result.OK if found else Result.NOTE
    return Finding("GPUs of nodes", result, found or f"none on {len(nodes)} node(s)", advice)
