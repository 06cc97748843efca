"""Ray: a cluster that is there, or one of its own for as long as a job runs."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import ray

from batchinference.pipeline.error_attribution import root_cause
from batchinference.pipeline.errors import Interrupted, JobFailure
from batchinference.pipeline.execution.user_modules import copied_modules
from batchinference.pipeline.ray_compat.cluster import (
    AuthenticationTokenLoader,
    auto_init_hook,
    get_memory_info_reply,
    get_state_from_address,
    maybe_enable_token_auth_if_token_available,
)
from batchinference.plan.writing import with_writers

Resources = dict[str, float]
CONNECT_SECONDS = 10.0
_TOKENS = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""Variables by which a user gives Ray a token."""
_BASE = 28
"""Characters that the path before Ray's directory may have: paths of sockets have 104 at most."""


@dataclass
class RayFiles:
    """The directory of a Ray of this program: its sockets, its logs, and what it spills."""

    path: str
    kept: bool = False
    """Whether the directory stays when Ray has ended, because a message names it."""

    @property
    def logs(self) -> str:
        return f"{self.of_ray}/session_latest/logs"

    @property
    def of_ray(self) -> str:
        """Within the private directory, because Ray opens its own to all users."""
        return f"{self.path}/r"


@contextmanager
def ray_files() -> Iterator[RayFiles]:
    """A directory that only this user can read. Ray's own place is open to all users."""
    base = tempfile.gettempdir()
    files = RayFiles(tempfile.mkdtemp(prefix="ray-", dir=base if len(base) < _BASE else "/tmp"))  # noqa: S108
    try:
        yield files
    except JobFailure as failure:
        files.kept = not isinstance(failure, Interrupted)
        raise
    finally:
        if not files.kept:
            shutil.rmtree(files.path, ignore_errors=True)


@contextmanager
def own_token() -> Iterator[None]:
    """A random token for the Ray of this program, in place of one in a file open to all users."""
    before = os.environ.get("RAY_AUTH_TOKEN")
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_TOKEN"]
        if before is not None:
            os.environ["RAY_AUTH_TOKEN"] = before
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def embedded(cpus: float, directory: str, files: RayFiles, *, quiet: bool) -> Iterator[Resources]:
    """Ray on this machine, with at least so many logical CPUs, and at least all that there are with
    those of write tasks beside them. Yields the resources that it found, by Ray's names of them:
    CPU, GPU, NPU, memory in bytes.

    Modules in `directory` can be imported by its workers. `files` is where Ray puts its own.
    `quiet` keeps what Ray prints in a file.
    Raises JobFailure when Ray does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    importable(directory)
    with own_token(), _output_to_file() if quiet else nullcontext():
        _init(
            _temp_dir=files.of_ray,
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
def _output_to_file() -> Iterator[None]:
    """Send the process's stdout and stderr, those of its C++ parts included, to a file that goes
    with it: `--verbose` is for who wants to read it. Ray prints deaths of workers to stdout."""
    _flush_stdout()
    saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2) if _is_open(descriptor)}
    with tempfile.TemporaryFile() as file:
        for descriptor in saved:
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        _flush_stdout()
        for descriptor, before in saved.items():
            os.dup2(before, descriptor)
            os.close(before)


def _flush_stdout() -> None:
    if sys.stdout is not None:  # as it is where a shell has closed it with >&-
        sys.stdout.flush()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


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
        logs = f" Its logs: {arguments['_temp_dir']}" if "_temp_dir" in arguments else ""
        raise JobFailure(f"Ray could not start: {root_cause(error).message}{logs}") from error
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def connected(
    address: str, directory: str | None, *, quiet: bool
) -> Iterator[list[dict[str, Any]]]:
    """An existing Ray cluster. Yields its nodes.

    The modules in `directory`, if any, can be imported here and by its workers. `quiet` keeps what
    Ray prints in a file. Raises JobFailure when there is no such cluster.
    """
    here = _reach(address)
    with _output_to_file() if quiet else nullcontext():
        if here or os.environ.keys() & _TOKENS:
            # as Ray does for 'auto'; a token in a file is not sent to other machines unasked
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        with copied_modules(directory) if directory else nullcontext() as modules:
            if directory and modules:
                importable(directory)
            _connect(address, {"working_dir": modules} if modules else None, quiet)
        try:
            yield ray.nodes()
        finally:
            ray.shutdown()


def _reach(address: str) -> bool:
    """Whether HOST:PORT is on this machine. Raises JobFailure when nothing answers there, for which
    Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as connection:
            return bool(connection.getpeername()[0] == connection.getsockname()[0])
    except (OSError, OverflowError) as error:
        raise JobFailure(
            f"--address: nothing answers at {address} ({error}). Give the HOST:PORT of the "
            "cluster's GCS, usually port 6379 of its head"
        ) from None


def _connect(address: str, environment: dict[str, str] | None, quiet: bool) -> None:
    try:
        _init(address=address, log_to_driver=not quiet, runtime_env=environment)
    except JobFailure as failure:
        if "InvalidAuthToken" not in failure.message:
            raise
        raise JobFailure(
            f"--address: the Ray cluster at {address} rejects the token, or has got none. Set "
            "RAY_AUTH_TOKEN to the cluster's token, or RAY_AUTH_MODE=token to send the one in "
            "~/.ray/auth_token"
        ) from None


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
