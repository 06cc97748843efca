"""Runs jobs in separate processes, which get a signal before a chosen storage operation (step), or
copy their output before each step.

A step is a call that changes stored data. On a disk, each rename and each removal within such a
call is also a step. Steps are counted while a job runs, so tests need no list of them. The stored
state after a step equals the state before the next step, so the states before all steps are all
that a kill can leave.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.spec.report import JobState, Report
from support.documents.minimal import Document
from support.jobs.command import wait_until
from support.jobs.without_ray import run_task_again, run_without_ray, small_job, write_input
from support.servers.clouds import Cloud
from support.servers.s3 import S3Server

TIMEOUT = 60.0
CONCURRENT_CASES = 2
"""Number of cases that run concurrently."""
END = "the end"
_CALLS = {
    "write": "write",
    "write_if": "write",
    "update": "write",
    "delete": "delete",
    "delete_if": "delete",
    "delete_directory": "clear",
    "delete_directory_if": "clear",
    "move": "move",
}
_WITHIN = {"os.rename": "rename", "os.remove": "remove", "os.rmdir": "remove directory"}
"""Audit events that Python raises before these system calls."""
_HEARTBEAT = "/heartbeat"
"""The heartbeat file. It is written at arbitrary times, so writing it is not counted as a step."""
_RANDOM = {
    r"part-[0-9a-f]{16}-\d{4}-\d{8}-[0-9a-f]{8}(-\d{4})?": "part-*",
    r"part-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}": "part-*",
    r"attempts/\d{4}-[0-9a-f]{8}": "attempts/*",
    r"history/[-.0-9TZ]+-[0-9a-f]{8}\.json": "history/RUN.json",
    r"\d{8}-\d{4}(\.\d+){5}\.[0-9a-f]{8}\.json": "TASK.json",
}

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["boto3", __name__, "support.jobs.fork_server"])

_exit_code_lock = threading.Lock()
"""An exit code can be read only once, and starting a process reads the codes of all others. If two
threads read at the same time, one of them gets 255."""

Stops = dict[int, signal.Signals]
"""Maps the number of a step to the signal that the process gets before it."""


@dataclass(frozen=True)
class States:
    """Copies of an output directory by the numbers of the steps before which they were made."""

    output: Path
    copies: Path

    def copy(self, step: int) -> None:
        if self.output.exists():
            shutil.copytree(self.output, self.copies / str(step))

    def restore(self, step: int) -> None:
        """Make the output what a job leaves that is killed before this step."""
        shutil.rmtree(self.output, ignore_errors=True)
        if (state := self.copies / str(step)).exists():
            shutil.copytree(state, self.output)


on_disk = pytest.mark.parametrize("site", ["posix"], indirect=True)
on_disk_and_long_on_s3 = pytest.mark.parametrize(
    "site", ["posix", pytest.param("s3", marks=pytest.mark.long("crash-points"))], indirect=True
)


@cache
def _start_fork_server() -> None:
    """Start the fork server with an import path for the modules of the tests. It runs a job first,
    because importing all modules takes longer than a job."""
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
        forkserver.ensure_running()


class JobProcess:
    """A job, or one task of the job, in a separate process."""

    def __init__(
        self,
        site: Site,
        job: Document,
        stops: Stops | None = None,
        task: int | None = None,
        states: States | None = None,
    ) -> None:
        self._log = Path(tempfile.mkdtemp(dir=site.logs)) / "steps"
        self._log.touch()
        arguments = (job, task, site.environment, stops or {}, self._log, states)
        self._process: ForkServerProcess = _processes.Process(
            target=_run_in_child, args=arguments, daemon=True
        )
        with _exit_code_lock:
            _start_fork_server()
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def steps(self) -> list[str]:
        """The names of the steps that the process has reached."""
        return self._log.read_text().splitlines()

    @property
    def report(self) -> Report:
        """The report of a job that has ended."""
        return Report.parse(self._log.with_name("report").read_bytes())

    def end(self) -> int:
        """Wait for the end and return the exit code. A negative code is a signal."""
        wait([self._process.sentinel], TIMEOUT)
        code = self._exit_code()
        assert code is not None, f"hangs after {self.steps[-1:]}"
        return code

    def _exit_code(self) -> int | None:
        with _exit_code_lock:
            return self._process.exitcode

    def wait_for_stop(self) -> None:
        """Wait until SIGSTOP has stopped the process, or until it has ended."""
        wait_until(self._is_stopped, "a stop")

    def _is_stopped(self) -> bool:
        if self._exit_code() is not None:
            return True
        with suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)
        return True

    def continue_process(self) -> None:
        if self._exit_code() is None:
            os.kill(self.pid, signal.SIGCONT)


@dataclass(frozen=True)
class Site:
    """Where a job reads and writes. `directory` shows the objects of an object store as plain
    files. Jobs access the store through `environment`, or through the job's field `storage`."""

    uri: str
    directory: Path
    logs: Path
    environment: dict[str, str] = field(default_factory=dict)
    storage: Document = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return not self.environment and not self.storage

    def job(self, name: str, **write: Any) -> Document:
        job = small_job(f"{self.uri}/in", f"{self.uri}/{name}", **write)
        if self.storage:
            job["spec"]["read"]["storage"] = job["spec"]["write"]["storage"] = self.storage
        return job

    def run(self, job: Document, kill: int | None = None) -> JobProcess:
        """Run a job until it ends, or kill it before a step."""
        process = JobProcess(self, job, {} if kill is None else {kill: signal.SIGKILL})
        code = process.end()
        assert code in (0, -signal.SIGKILL), f"it ended with {code} after {process.steps[-1:]}"
        return process

    def run_again(self, job: Document) -> Report:
        """Run a job until it ends; on a disk in this process, which is faster."""
        if not self.local:
            return self.run(job).report
        return run_without_ray(job)


class Recording:
    """A job that has ended, and the states of its output before each of its steps. A `directory`
    holds more than the output, such as a catalog."""

    def __init__(self, site: Site, job: Document, directory: Path | None = None) -> None:
        output = directory or site.directory / Path(job["spec"]["write"]["path"]).name
        self._states = States(output, Path(tempfile.mkdtemp(dir=site.logs)))
        process = JobProcess(site, job, states=self._states)
        assert process.end() == 0
        assert process.report.state == JobState.SUCCEEDED, process.report.message
        self.steps = process.steps

    def faults(
        self, check: Callable[[int], list[str]], steps: Iterable[int]
    ) -> dict[str, list[str]]:
        """Return the faults that the check finds in the states before these steps."""
        result = {}
        for step in steps:
            self._states.restore(step)
            if faults := check(step):
                result[f"{step}: {self.steps[step]}"] = faults
        return result


def local_site(directory: Path) -> Site:
    write_input(directory / "in")
    (directory / "logs").mkdir()
    return Site(str(directory), directory, directory / "logs")


def s3_site(directory: Path, server: S3Server) -> Site:
    local = local_site(directory)
    bucket = _bucket(directory)
    server.client().create_bucket(Bucket=bucket)
    for file in (directory / "in").iterdir():
        server.put(bucket, {f"in/{file.name}": file.read_bytes()})
    return Site(f"s3://{bucket}", server.directory / bucket, local.logs, server.environment)


def cloud_site(directory: Path, scheme: str, cloud: Cloud, files: Path) -> Site:
    """Return the place of a server that stores its objects as files of a directory."""
    local, bucket = local_site(directory), _bucket(directory)
    for file in (directory / "in").iterdir():
        cloud.put(f"{bucket}/in/{file.name}", file.read_bytes())
    storage = {"endpoint": cloud.endpoint, "anonymous": True}
    return Site(f"{scheme}://{bucket}", files / bucket, local.logs, storage=storage)


def _bucket(directory: Path) -> str:
    return f"crashes-{directory.name.replace('_', '-').lower().strip('-')}"


def every_step(steps: list[str]) -> list[int]:
    """Return the numbers of all steps, but of steps within other steps only one of each kind."""
    first = {name: number for number, name in reversed(list(enumerate(steps)))}
    return [n for n, name in enumerate(steps) if ": " not in name or first[name] == n]


def one_of_each_kind(steps: list[str]) -> list[int]:
    """Return the number of the last step of each kind, without steps within others."""
    return list({name: n for n, name in enumerate(steps) if ": " not in name}.values())


def one_write_of_each_kind(steps: list[str]) -> list[int]:
    """Return the number of the last write of each kind, and of the end."""
    return [n for n in one_of_each_kind(steps) if steps[n] == END or steps[n].startswith("write")]


def faults(check: Callable[[int], list[str]], cases: Iterable[int]) -> dict[int, list[str]]:
    """Return the faults that the check finds, by case, without cases that have none."""
    cases = list(cases)
    with ThreadPoolExecutor(CONCURRENT_CASES) as pool:
        result = dict(zip(cases, pool.map(check, cases), strict=True))
    return {case: faults for case, faults in result.items() if faults}


def _run_in_child(
    given: Document,
    task: int | None,
    environment: dict[str, str],
    stops: Stops,
    log: Path,
    states: States | None,
) -> None:
    os.environ.update(environment)
    os.fsync = lambda _: None  # only a crash of the machine loses written data
    steps = _Steps(Location(given["spec"]["write"]["path"]).path, stops, log, states)
    steps.count()
    if task is None:
        # a process that is stopped writes no heartbeat
        report = run_without_ray(given, lease_timeout=0.2)
        log.with_name("report").write_bytes(report.serialized())
    else:
        with suppress(BadOutput):
            run_task_again(given, task)
    steps.reach(END)


class _Steps:
    """Logs the steps of this process, sends it the signals before them and copies its states."""

    def __init__(self, output: str, stops: Stops, log: Path, states: States | None) -> None:
        self._output, self._stops, self._log, self._states = output, stops, log, states
        self._reached = 0
        self._current = threading.local()

    def reach(self, name: str) -> None:
        for pattern, replacement in _RANDOM.items():
            name = re.sub(pattern, replacement, name)
        with self._log.open("a") as log:
            log.write(name + "\n")
        if self._states is not None:
            self._states.copy(self._reached)
        self._reached += 1
        if (number := self._stops.get(self._reached - 1)) is not None:
            # only a signal to this thread stops it immediately
            signal.pthread_kill(threading.get_ident(), number)

    def count(self) -> None:
        """Start counting steps."""
        for call, verb in _CALLS.items():
            setattr(Location, call, self._counted(verb, getattr(Location, call)))
        sys.addaudithook(self._on_event)

    def _counted(self, verb: str, call: Callable[..., None]) -> Callable[..., None]:
        def counted(address: Location, *content: Any) -> None:
            if address.path.endswith(_HEARTBEAT) or getattr(self._current, "name", None):
                call(address, *content)  # the latter is a part of another call
                return
            name = f"{verb} {address.path.removeprefix(self._output).lstrip('/')}"
            self.reach(name)
            self._current.name = name
            try:
                call(address, *content)
            finally:
                self._current.name = None

        return counted

    def _on_event(self, event: str, _: tuple[Any, ...]) -> None:
        within = getattr(self._current, "name", None)
        if within is not None and event in _WITHIN:
            self._current.name = None  # writing the log does not count as a step
            self.reach(f"{within}: {_WITHIN[event]}")
            self._current.name = within
