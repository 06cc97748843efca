"""Ray: a cluster that is there, or one of its own for as long as a job runs."""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import ray
from ray._private import auto_init_hook
from ray._private.internal_api import get_memory_info_reply, get_state_from_address

from batchinference.pipeline.failures import Interrupted, JobFailure, cause_of
from batchinference.plan.writing import with_writers

Resources = dict[str, float]


@contextmanager
def embedded(cpus: float, directory: str, *, quiet: bool) -> Iterator[Resources]:
    """Ray on this machine, with at least so many logical CPUs, and at least all that there are with
    those of write tasks beside them. Yields the resources that it found, by Ray's names of them:
    CPU, GPU, NPU, memory in bytes.

    Modules in `directory` can be imported by its workers. `quiet` keeps what Ray prints in a file.
    Raises JobFailure when Ray does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    importable(directory)
    with _stderr_to_file() if quiet else nullcontext():
        _init(
            num_cpus=max(with_writers(_cpus()), math.ceil(cpus)),
            include_dashboard=False,
            log_to_driver=not quiet,
        )
        try:
            yield ray.cluster_resources()
        finally:
            ray.shutdown()


def _cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


@contextmanager
def _stderr_to_file() -> Iterator[None]:
    """Send the process's stderr, that of its C++ parts included, to a file that goes with it:
    `--verbose` is for who wants to read it."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _init(**arguments: Any) -> None:
    """Initialize Ray, which takes SIGTERM for itself: it is given back to whoever had it."""
    # a job that failed leaves a thread behind, which must not start another Ray after this one
    auto_init_hook.enable_auto_connect = False
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**arguments)
    except SystemExit:  # what Ray makes of a SIGTERM
        raise Interrupted("stopped by SIGTERM") from None
    except Exception as error:
        raise JobFailure(f"Ray is not up: {cause_of(error).message}") from error
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def connected(address: str) -> Iterator[list[dict[str, Any]]]:
    """An existing Ray cluster. Yields its nodes. Raises JobFailure when there is none."""
    _init(address=address, log_to_driver=True)
    try:
        yield ray.nodes()
    finally:
        ray.shutdown()


def spilled_bytes() -> int | None:
    """Bytes that the object stores of all nodes have spilled to disk; None where Ray tells none."""
    try:
        address = ray.get_runtime_context().gcs_address
        stats = get_memory_info_reply(get_state_from_address(address)).store_stats
    except Exception:  # noqa: BLE001 - of no consequence for the job
        return None
    return int(stats.spilled_bytes_total)


def importable(directory: str) -> None:
    """Put a directory first on the path of this process and of those it starts."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([directory, *(p for p in others if p)])
