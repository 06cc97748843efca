"""Processes that play a job and are stopped by a signal at any step that they do on storage.

A step is a call that changes what is stored, and on a disk also each rename and each removal within
such a call. Steps are counted as they come, so that nobody has to list them: what is stored after
a step is what is stored before the next one.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.storage import Address
from batchinference.spec.report import Report
from support.clouds import Cloud
from support.commands import wait_until
from support.documents import Document
from support.played_jobs import play, play_task, small_job, write_input
from support.s3 import S3Server

PATIENCE = 60.0
AT_ONCE = 2
"""Processes, where several can be looked at side by side."""
END = "the end"
_CALLS = {"write": "write", "delete": "delete", "delete_directory": "clear"}
_WITHIN = {"os.rename": "rename", "os.remove": "remove", "os.rmdir": "remove directory"}
"""Events by which Python tells of system calls, before they are made."""
_BESIDE = "/pulse"
"""By what a run says that it lives: it comes at any time, and nothing hangs on it."""
_RANDOM = {
    r"part-[0-9a-f]{8}-\d{4}-\d{8}-[0-9a-f]{8}(-\d{4})?": "part-*",
    r"part-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}": "part-*",
    r"attempts/\d{4}-[0-9a-f]{8}": "attempts/*",
    r"retyped/[0-9a-f]{32}": "retyped/*",
    r"\d{8}\.\d+\.\d+\.\d+\.\d+\.[0-9a-f]{8}\.json": "TASK.json",
}

# what has been imported there is there in all processes, and no thread of the tests is
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["batchinference.pipeline.job", "batchinference.pipeline.file_input", "boto3", "psutil"]
)

_one_asks = threading.Lock()
"""An exit code can be read once, and whoever starts a process asks after all others: of two threads
that ask at once one would be told 255."""

Stops = dict[int, signal.Signals]
"""The signals that a process gets, and the numbers of the steps before which it gets them."""


class Played:
    """A job in a process of its own, or only a task of one."""

    def __init__(
        self, place: Place, job: Document, stops: Stops | None = None, task: int | None = None
    ) -> None:
        self._log = Path(tempfile.mkdtemp(dir=place.logs)) / "steps"
        self._log.touch()
        arguments = (job, task, place.environment, stops or {}, self._log)
        self._process: ForkServerProcess = _processes.Process(
            target=_play, args=arguments, daemon=True
        )
        with _one_asks:
            self._process.start()

    @property
    def steps(self) -> list[str]:
        """The names of those that it has come to."""
        return self._log.read_text().splitlines()

    @property
    def report(self) -> Report:
        """Of a job that has come to its end."""
        return Report.parse(self._log.with_name("report").read_bytes())

    def end(self) -> int:
        """Wait for it. The exit code comes back; less than 0 is a signal."""
        wait([self._process.sentinel], PATIENCE)
        code = self._exit_code()
        assert code is not None, f"hangs after {self.steps[-1:]}"
        return code

    def _exit_code(self) -> int | None:
        with _one_asks:
            return self._process.exitcode

    def wait_for_stop(self) -> None:
        """Until SIGSTOP has stopped it. It may also end before that."""
        wait_until(self._is_still, "a stop")

    def _is_still(self) -> bool:
        if self._exit_code() is not None:
            return True
        with suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)
        return True

    def go_on(self) -> None:
        if self._exit_code() is None:
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGCONT)


@dataclass(frozen=True)
class Place:
    """Where a job's input and outputs are. Those of object stores are plain files to whoever looks
    into the directory of the server, which `environment` or `storage` of the job tell of."""

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

    def play(self, job: Document, kill: int | None = None) -> Played:
        """Run it until it ends, or is killed before a step."""
        played = Played(self, job, {} if kill is None else {kill: signal.SIGKILL})
        code = played.end()
        assert code in (0, -signal.SIGKILL), f"it ended with {code} after {played.steps[-1:]}"
        return played


def local_place(directory: Path) -> Place:
    write_input(directory / "in")
    (directory / "logs").mkdir()
    return Place(str(directory), directory, directory / "logs")


def s3_place(directory: Path, server: S3Server) -> Place:
    local = local_place(directory)
    bucket = _bucket(directory)
    server.client().create_bucket(Bucket=bucket)
    for file in (directory / "in").iterdir():
        server.put(bucket, {f"in/{file.name}": file.read_bytes()})
    return Place(f"s3://{bucket}", server.directory / bucket, local.logs, server.environment)


def cloud_place(directory: Path, scheme: str, cloud: Cloud, files: Path) -> Place:
    """Of a server whose objects are files of a directory as well."""
    local, bucket = local_place(directory), _bucket(directory)
    for file in (directory / "in").iterdir():
        cloud.put(f"{bucket}/in/{file.name}", file.read_bytes())
    storage = {"endpoint": cloud.endpoint, "anonymous": True}
    return Place(f"{scheme}://{bucket}", files / bucket, local.logs, storage=storage)


def _bucket(directory: Path) -> str:
    return f"crashes-{directory.name.replace('_', '-').lower().strip('-')}"


def worth_a_kill(steps: list[str]) -> list[int]:
    """The numbers of steps, but of steps within others only one of each kind."""
    first = {name: number for number, name in reversed(list(enumerate(steps)))}
    return [n for n, name in enumerate(steps) if ": " not in name or first[name] == n]


def one_of_each_kind(steps: list[str]) -> list[int]:
    """The numbers of the last steps of each kind, without those within others."""
    return list({name: n for n, name in enumerate(steps) if ": " not in name}.values())


def faults(check: Callable[[int], list[str]], cases: Iterable[int]) -> dict[int, list[str]]:
    """What a check finds, by the cases in which it finds something."""
    cases = list(cases)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(cases, pool.map(check, cases), strict=True))
    return {case: words for case, words in found.items() if words}


def _play(
    given: Document, task: int | None, environment: dict[str, str], stops: Stops, log: Path
) -> None:
    os.environ.update(environment)
    os.fsync = lambda _: None  # what a process has written outlives it; only a machine forgets
    steps = _Steps(Address(given["spec"]["write"]["path"]).path, stops, log)
    steps.count()
    if task is None:
        report = play(given)
        log.with_name("report").write_bytes(report.serialized())
    else:
        with suppress(BadOutput):
            play_task(given, task)
    steps.met(END)


class _Steps:
    """The steps of this process."""

    def __init__(self, output: str, stops: Stops, log: Path) -> None:
        self._output, self._stops, self._log = output, stops, log
        self._met = 0
        self._here = threading.local()

    def met(self, name: str) -> None:
        """This step comes next."""
        for pattern, words in _RANDOM.items():
            name = re.sub(pattern, words, name)
        with self._log.open("a") as log:
            log.write(name + "\n")
        self._met += 1
        if (number := self._stops.get(self._met - 1)) is not None:
            # to this thread, which does not go on until somebody lets it
            signal.pthread_kill(threading.get_ident(), number)

    def count(self) -> None:
        """From now on."""
        for call, verb in _CALLS.items():
            setattr(Address, call, self._counted(verb, getattr(Address, call)))
        sys.addaudithook(self._heard)

    def _counted(self, verb: str, call: Callable[..., None]) -> Callable[..., None]:
        def counted(address: Address, *content: Any) -> None:
            if address.path.endswith(_BESIDE):
                call(address, *content)
                return
            name = f"{verb} {address.path.removeprefix(self._output).lstrip('/')}"
            self.met(name)
            self._here.name = name
            try:
                call(address, *content)
            finally:
                self._here.name = None

        return counted

    def _heard(self, event: str, _: tuple[Any, ...]) -> None:
        within = getattr(self._here, "name", None)
        if within is not None and event in _WITHIN:
            self._here.name = None  # the log is no part of it
            self.met(f"{within}: {_WITHIN[event]}")
            self._here.name = within
