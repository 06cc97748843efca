"""The lease of an output, stored in `job.json`, and the identities of jobs and processes in it.

Later runs and delayed tasks read the lease.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest import Digest, RunId
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location, is_inside
from batchinference.pipeline.storage.state_json import load_json
from batchinference.version import __version__

if TYPE_CHECKING:
    from batchinference.spec.job import BatchInference


_Text = Annotated[str, Field(strict=True, max_length=8192)]
_Attempt = Annotated[int, Field(strict=True, ge=0, lt=10**8)]
_Flag = Annotated[bool, Field(strict=True)]
_Series = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]


@dataclass(frozen=True)
class Lease:
    """The run that holds an output: the key of its work, and the number of its attempt. `run` is
    random, because attempts are counted from 1 again after a user has removed the state of an
    output. `begun` is false while the run has only claimed the output: rows of earlier runs no
    longer count. `job` identifies its job, and `errors` is the location of its error records.
    `series` is shared by all attempts that would put the same rows into a table, until one of them
    has done so. `process` is the process that runs it."""

    key: Digest
    attempt: _Attempt
    run: RunId
    begun: _Flag = True
    job: _Text = ""
    errors: _Text = ""
    series: _Series = ""
    process: _Text = ""

    @classmethod
    def new(
        cls, layout: Layout, attempt: int, *, begun: bool = True, job: str = "", series: str = ""
    ) -> Lease:
        run = uuid.uuid4().hex
        errors = layout.errors.uri
        return cls(layout.key, attempt, run, begun, job, errors, series, this_process())

    @property
    def commit_id(self) -> str:
        """The mark of this attempt in the commit of a table."""
        return f"{self.key}-{self.attempt}-{self.run}"

    @property
    def series_id(self) -> str:
        """The mark of the series in the commit of a table. A table accepts one commit per
        series."""
        return f"{self.key}-{self.series}"

    def place(self, layout: Layout) -> Location:
        """Return the directory of this attempt."""
        return layout.attempts / f"{self.attempt:04d}-{self.run[:8]}"

    def put(self, layout: Layout, before: Lease | None) -> None:
        """Write the lease, so that the output belongs to this run.

        Raises BadOutput if the output does not have the lease `before` any more: of two runs that
        write at the same time, only one succeeds."""
        fields = asdict(self)
        stored = {"work": fields.pop("key"), **fields, "version": __version__}
        new = (json.dumps(stored, indent=2) + "\n").encode()

        def replace_lease(content: bytes | None) -> bytes:
            # after a lost response, the content is this lease
            if content != new and _parse_lease(layout.job, content) != before:
                raise another_run_has_begun(layout)
            return new

        layout.job.update(replace_lease)

    def complete(self, layout: Layout) -> None:
        """Write the completion marker."""
        layout.success.write(self.run.encode())

    def is_complete(self, layout: Layout) -> bool:
        """Return whether this run has written the completion marker. The marker may also come from
        a run that was considered dead when this one began."""
        return self.is_marker(layout.success.read_if_exists())

    def is_marker(self, content: bytes | None) -> bool:
        """Return whether this run has written a completion marker with this content."""
        return content == self.run.encode()

    def errors_in(self, output: Location, job_errors: Location) -> Location | None:
        """Return the location of the error records if another job may delete them; None otherwise.
        `job_errors` is the location where that job writes its error records.

        Anyone who can write to the output can write this field. So only `job_errors` and locations
        inside the output are allowed."""
        errors = Location(self.errors, output.storage)
        if errors.path == job_errors.path and errors.in_store_of(job_errors):
            return job_errors
        inside = output.holds(errors) and is_inside(output.below(errors.path))
        return errors.without_links_below(output) if inside else None


_LEASE = TypeAdapter(Lease)
_STORED = ("attempt", "run", "begun", "job", "errors", "series")


def read_lease(layout: Layout) -> Lease | None:
    """Return the lease of an output; None if there is none. Raises BadOutput if it is damaged."""
    return lease_in(layout.job)


def lease_in(place: Location) -> Lease | None:
    """Return the lease in a file; None if the file does not exist."""
    return _parse_lease(place, place.read_if_exists())  # one request: each commit reads the lease


def _parse_lease(place: Location, content: bytes | None) -> Lease | None:
    if content is None:
        return None
    try:
        stored = load_json(content)
        fields = {name: stored[name] for name in _STORED}
        process = stored.get("process", "")  # earlier versions do not write it
        return _LEASE.validate_python({"key": stored["work"], **fields, "process": process})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadOutput(
            f"'{place.uri}' is damaged, so the job of this output is unknown. Choose another "
            "write.path, or remove this one"
        ) from None


def check_unchanged(layout: Layout, lease: Lease | None) -> None:
    """Raise BadOutput if an output does not have this lease any more."""
    if read_lease(layout) != lease:
        raise another_run_has_begun(layout)


def another_run_has_begun(layout: Layout) -> BadOutput:
    """Return the failure of a run that did not get the lease."""
    return BadOutput(
        f"another run has begun in write.path '{layout.output.uri}' while this one was being "
        "prepared. Choose another path, or wait until that has ended"
    )


_PROC = Path("/proc")


@cache
def _process_name(pid: int) -> str:
    """Return the machine, the process id and the start time of a process.

    Without /proc, the name is random: then nobody can detect that the process has died."""
    machine = _machine_id()
    return f"{machine}-{pid}-{_start_time(pid)}" if machine else f"-{pid}-{uuid.uuid4().hex}"


def this_process() -> str:
    """Return the name of this process."""
    return _process_name(os.getpid())


def is_dead(name: str) -> bool:
    """Return whether a process has certainly ended: it ran on this machine and no longer exists."""
    machine, _, process = name.partition("-")
    pid, _, started = process.partition("-")
    if not pid.isdecimal() or machine != _machine_id() or not machine:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False  # another user's process, which /proc may hide: its heartbeat decides
    return _start_time(int(pid)) != started


@cache
def _machine_id() -> str:
    """Return a hash of the boot id and the PID namespace; empty if they are unknown.

    The PID namespace distinguishes containers with the same host name."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if it has ended."""
    try:
        state, *fields = (_PROC / f"{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]


def identity_of(job: BatchInference) -> str:
    """Return the identity of a job, which distinguishes it from other jobs that write to the same
    path. All attempts of a job have the same identity, and so do all runs of a job file on one
    machine."""
    metadata = job.metadata
    uid = (metadata.model_extra or {}).get("uid")
    if uid:
        return f"{metadata.namespace}/{metadata.name} ({uid})"
    return f"{metadata.name} on {socket.gethostname()}"


def name_of(identity: str) -> str:
    """Return the part of an identity that stays the same when the resource is created again."""
    return identity.partition(" (")[0]


def is_resource(identity: str) -> bool:
    """Return whether the identity belongs to a resource on a cluster. A resource requests its work
    once, however many attempts that takes. A job file on a machine may be run any number of
    times."""
    return identity.endswith(")")
