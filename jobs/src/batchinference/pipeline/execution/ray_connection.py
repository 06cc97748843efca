"""Connects to an existing Ray cluster, or starts Ray on this machine while a job runs.

The nodes of an existing cluster get the user's modules from the job's directory."""

from __future__ import annotations

import glob
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ray

from batchinference.pipeline.error_classification import root_cause
from batchinference.pipeline.errors import Interrupted, JobFailure
from batchinference.pipeline.ray_compat import (
    AuthenticationTokenLoader,
    accelerator_of_machine,
    auto_init_hook,
    get_memory_info_reply,
    get_state_from_address,
    maybe_enable_token_auth_if_token_available,
    nothing_left_if_interrupted,
    on_loopback,
    without_monitors,
)
from batchinference.pipeline.steps.import_path import add_import_path

Resources = dict[str, float]
CheckStop = Callable[[], None]
"""Raises Interrupted if the user has stopped the job."""
CONNECT_SECONDS = 10.0
"""Seconds in which an existing Ray cluster must answer."""
START_TRIES = 3
"""Maximum number of attempts to start Ray on this machine."""
IDLE_SECONDS = 60
"""Seconds after which Ray on this machine ends an idle process. Ray's default is one second, but a
new process must import everything again."""
_SYSTEM_CONFIG = {
    "enable_metrics_collection": False,  # metrics would listen on all interfaces
    "idle_worker_killing_time_threshold_ms": IDLE_SECONDS * 1000,
}
_TOKENS = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
"""Environment variables with which a user gives Ray a token."""
_BASE = 28
"""Maximum length of the temporary directory, because a socket path has at most 104 characters."""


@dataclass
class RayFiles:
    """The directory for sockets, logs and spilled objects of the Ray that this process starts."""

    path: str
    kept: bool = False
    """Whether the directory remains after Ray has stopped, because an error message names it."""

    @property
    def logs(self) -> str:
        """The directory of Ray's logs."""
        return f"{self.ray_directory}/session_latest/logs"

    @property
    def ray_directory(self) -> str:
        """The subdirectory for Ray. All users may read it, but its parent is private."""
        return f"{self.path}/r"


@contextmanager
def ray_files() -> Iterator[RayFiles]:
    """Yield a private directory for Ray, and delete it afterwards unless it is `kept`. All users
    can read Ray's default directory."""
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
def random_token() -> Iterator[None]:
    """Set a random token for Ray, whose default token is in a file that all users can read."""
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
def local_ray(
    cpus: int, directory: str, files: RayFiles, *, quiet: bool, check_stop: CheckStop = lambda: None
) -> Iterator[Resources]:
    """Start Ray with `cpus` logical CPUs on this machine and yield its resources. They have Ray's
    names: CPU, GPU, NPU, and memory in bytes. Ray's workers can import modules in `directory`.
    `quiet` redirects the output of Ray to a file. Raises JobFailure if Ray does not start. Raises
    Interrupted if `check_stop` does."""
    if ray.is_initialized():  # by code of the user, whose Ray must not be shut down
        raise JobFailure(
            "Ray runs in this process already, and a job starts its own. Call ray.shutdown() first"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    add_import_path(directory)
    with random_token(), _output_to_file() if quiet else nullcontext():
        with on_loopback(), without_monitors(log_to_driver=not quiet):
            _init(
                check_stop,
                _system_config=_SYSTEM_CONFIG,
                _temp_dir=files.ray_directory,
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=not quiet,
                # errors only, because the stderr of a notebook cannot be redirected
                logging_level=logging.ERROR if quiet else logging.INFO,
            )
        try:
            yield ray.cluster_resources()
        finally:
            ray.shutdown()


def machine_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def machine_devices() -> Resources:
    """Return the devices of this machine, by Ray's names such as GPU and NPU."""
    name, count = accelerator_of_machine()
    return {name: count} if count else {}


@contextmanager
def _output_to_file() -> Iterator[None]:
    """Redirect stdout and stderr of the process, also of its C++ code, to a temporary file. Ray
    prints deaths of workers to stdout. `--verbose` shows them."""
    sys.stdout.flush()
    saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    with tempfile.TemporaryFile() as file:
        for descriptor in saved:
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        for descriptor, before in saved.items():
            os.dup2(before, descriptor)
            os.close(before)


def _start(check_stop: CheckStop, arguments: dict[str, Any]) -> None:
    """Initialize Ray. Ray on this machine gets several attempts, because a busy machine may be
    slow."""
    tries = 1 if "address" in arguments else START_TRIES
    for number in range(1, tries + 1):
        try:
            with nothing_left_if_interrupted():
                ray.init(**arguments)
            return
        except Exception:
            check_stop()
            if number == tries:
                raise
            ray.shutdown()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make Ctrl-C also raise KeyboardInterrupt during the block, to interrupt the start of Ray.
    Afterwards, restore the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    on_interrupt, on_terminate = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))

    def interrupt(number: int, frame: FrameType | None) -> None:
        if callable(on_interrupt):
            on_interrupt(number, frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
        signal.signal(signal.SIGTERM, on_terminate)


def _init(check_stop: CheckStop, **arguments: Any) -> None:
    """Initialize Ray. Raises JobFailure if Ray cannot start, or Interrupted if the job stops."""
    # a thread of a failed job may still run, and must not start Ray again
    auto_init_hook.enable_auto_connect = False
    try:
        with _interruptible():
            _start(check_stop, arguments)
    except Interrupted:
        raise
    except SystemExit:  # Ray turns a SIGTERM into this
        raise Interrupted("stopped by SIGTERM") from None
    except KeyboardInterrupt:
        check_stop()
        raise
    except Exception as error:
        check_stop()
        message = root_cause(error).message
        if address := arguments.get("address"):
            raise JobFailure(f"--address: no connection to Ray ({address}): {message}") from error
        logs = f". Ray's logs: {arguments['_temp_dir']}" if "_temp_dir" in arguments else ""
        raise JobFailure(f"Ray could not start: {message}{logs}") from error


@contextmanager
def remote_ray(
    address: str, directory: str | None, *, quiet: bool, check_stop: CheckStop = lambda: None
) -> Iterator[list[dict[str, Any]]]:
    """Connect to an existing Ray cluster and yield its nodes. This process and the workers can
    import the modules in `directory`. `quiet` redirects the output of Ray to a file. Raises
    JobFailure if the cluster cannot be reached. Raises Interrupted if `check_stop` does."""
    is_local = _probe_address(address)
    with _output_to_file() if quiet else nullcontext():
        if is_local or os.environ.keys() & _TOKENS:
            # a token file belongs to a cluster on the same machine. Ray does this only for 'auto'
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        environment = environment_with_modules(directory) if directory else None
        if directory and environment:
            add_import_path(directory)
        _connect(address, environment, quiet, check_stop)
        try:
            yield ray.nodes()
        finally:
            ray.shutdown()


def _probe_address(address: str) -> bool:
    """Return whether HOST:PORT is on this machine. Raises JobFailure if nothing answers, because
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


def _connect(
    address: str, environment: dict[str, Any] | None, quiet: bool, check_stop: CheckStop
) -> None:
    try:
        _init(check_stop, address=address, log_to_driver=not quiet, runtime_env=environment)
    except JobFailure as failure:
        if "InvalidAuthToken" not in failure.message:
            raise
        raise JobFailure(
            f"--address: the Ray cluster at {address} rejects the token, or no token was sent. Set "
            "RAY_AUTH_TOKEN to the cluster's token, or RAY_AUTH_MODE=token to send the one in "
            "~/.ray/auth_token"
        ) from None


def spilled_bytes() -> int | None:
    """Return the bytes that all object stores have spilled to disk; None if unknown."""
    if not ray.is_initialized():
        return None  # get_runtime_context would start Ray
    try:
        address = ray.get_runtime_context().gcs_address
        stats = get_memory_info_reply(get_state_from_address(address)).store_stats
    except Exception:  # noqa: BLE001 - the job does not depend on it
        return None
    return int(stats.spilled_bytes_total)


def environment_with_modules(directory: str) -> dict[str, Any] | None:
    """Return a runtime environment that sends the modules and packages of a directory to the nodes;
    None without modules. Data and hidden files are not sent."""
    entries = sorted(Path(directory).iterdir())
    excluded = [entry.name for entry in entries if not _is_module(entry)]
    if len(excluded) == len(entries):
        return None
    excludes = ["__pycache__", ".?*", *(f"/{glob.escape(name)}" for name in excluded)]
    return {"working_dir": directory, "excludes": excludes}


def _is_module(entry: Path) -> bool:
    package = (entry / "__init__.py").is_file()
    return package or (entry.name.endswith((".py", ".so")) and entry.is_file())
