"""The lease of an output, stored in `job.json`, and the identities of jobs and processes in it.

Only the run with the lease may write to the output. Later runs and delayed tasks read the lease."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter

from batchinference.pipeline.commit.manifest import Digest, RunId
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Guard, Location, is_inside
from batchinference.pipeline.storage.state_json import load_json
from batchinference.version import __version__

if TYPE_CHECKING:
    from batchinference.spec.job import BatchInference


_Text = Annotated[str, Field(strict=True, max_length=8192)]
_PassNumber = Annotated[int, Field(strict=True, ge=0, lt=10**8)]
_Flag = Annotated[bool, Field(strict=True)]
_Series = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]


@dataclass(frozen=True)
class Lease:
    """The right of one run to write to an output."""

    key: Digest
    """The hash of the job's output definition (see `output_paths.work_key`)."""
    pass_number: _PassNumber
    run: RunId
    """A random ID of the pass. `pass_number` restarts at 1 if a user deletes the state."""
    begun: _Flag = True
    """False between the claim of the output and the beginning of the pass, when no rows are
    valid."""
    job: _Text = ""
    """The identity of the job (see `identity_of`)."""
    errors: _Text = ""
    """The location of the error records."""
    series: _Series = ""
    """The ID of the passes that try to commit the same rows to a table, until one succeeds."""
    process: _Text = ""
    """The name of the process that runs the driver (see `this_process`)."""

    @classmethod
    def new(
        cls,
        layout: Layout,
        pass_number: int,
        *,
        begun: bool = True,
        job: str = "",
        series: str = "",
    ) -> Lease:
        """Return a lease of this process, with a new random ID of the pass. Does not store it."""
        run = uuid.uuid4().hex
        errors = layout.errors.uri
        return cls(layout.key, pass_number, run, begun, job, errors, series, this_process())

    @property
    def commit_id(self) -> str:
        """The ID of this pass, stored in its commit to a table."""
        return f"{self.key}-{self.pass_number}-{self.run}"

    @property
    def series_id(self) -> str:
        """The ID of the series in commits to a table. A table accepts one commit per series."""
        return f"{self.key}-{self.series}"

    def pass_directory(self, layout: Layout) -> Location:
        """Return the directory of this pass."""
        return layout.passes / f"{self.pass_number:04d}-{self.run[:8]}"

    def write_if_unchanged(self, layout: Layout, before: Lease | None) -> None:
        """Atomically replace the lease `before` of the output by this lease. Raises BadOutput if
        the output has another lease. If two runs call this at once, only one succeeds."""
        fields = asdict(self)
        names = {"work": fields.pop("key"), "attempt": fields.pop("pass_number")}
        stored = {**names, **fields, "version": __version__}
        new = (json.dumps(stored, indent=2) + "\n").encode()

        def replace_lease(content: bytes | None) -> bytes:
            # a retry after a lost response finds that this lease is already written
            if content != new and _parse_lease(layout.lease_file, content) != before:
                raise another_run_error(layout)
            return new

        layout.lease_file.update(replace_lease)

    def write_success_marker(self, layout: Layout, guard: Guard | None = None) -> None:
        """Write the completion marker, which contains the ID of this pass. Without a `guard`, the
        output must have this lease."""
        layout.success.write_if(guard or guard_of(layout, self), self.run.encode())

    def has_completed(self, layout: Layout) -> bool:
        """Return whether this run has completed the output. The completion marker can also be that
        of an earlier run, which was considered dead."""
        return self.is_success_marker(layout.success.read_if_exists())

    def is_success_marker(self, content: bytes | None) -> bool:
        """Return whether this is the content of the completion marker of this pass."""
        return content == self.run.encode()

    def deletable_errors(self, output: Location, job_errors: Location) -> Location | None:
        """Return the location of the error records if another job may delete them, else None.
        `job_errors` is the location of the other job's error records. Anyone who can write to the
        output can set `errors`. So only `job_errors` and locations inside the output are
        allowed."""
        errors = Location(self.errors, output.storage)
        if errors.path == job_errors.path and errors.in_store_of(job_errors):
            return job_errors
        inside = output.contains(errors) and is_inside(output.relative(errors.path))
        return errors.without_links_below(output) if inside else None


_LEASE = TypeAdapter(Lease)
_STORED = ("run", "begun", "job", "errors", "series")


def read_lease(layout: Layout) -> Lease | None:
    """Return the lease of an output; None if it has none. Raises BadOutput for a damaged lease."""
    return read_lease_file(layout.lease_file)


def read_lease_file(file: Location) -> Lease | None:
    """Return the lease in a file; None if there is no file. Raises BadOutput if it is damaged."""
    return _parse_lease(file, file.read_if_exists())  # one request, as each commit reads the lease


def _parse_lease(file: Location, content: bytes | None) -> Lease | None:
    if content is None:
        return None
    try:
        stored = load_json(content)
        fields = {name: stored[name] for name in _STORED}
        process = stored.get("process", "")  # earlier versions do not write this field
        names = {"key": stored["work"], "pass_number": stored["attempt"]}
        return _LEASE.validate_python({**names, **fields, "process": process})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadOutput(
            f"'{file.uri}' is damaged, so the job of this output is unknown. Choose another "
            "write.path, or delete the files in this one"
        ) from None


def check_unchanged(layout: Layout, lease: Lease | None) -> None:
    """Raise BadOutput if the lease of an output is no longer `lease`."""
    if read_lease(layout) != lease:
        raise another_run_error(layout)


def guard_of(layout: Layout, lease: Lease | None) -> Guard:
    """Return a guard for changes to an output with this lease. A change raises BadOutput if the
    output has another lease."""
    return Guard(layout.lease_file, partial(check_unchanged, layout, lease))


def another_run_error(layout: Layout) -> BadOutput:
    """Return the error for a run that did not get the lease."""
    return BadOutput(
        f"another run has begun in write.path '{layout.output.uri}' while this one was being "
        "prepared. Choose another path, or wait until the other run has ended"
    )


_PROC = Path("/proc")


@cache
def _process_name(pid: int) -> str:
    """Return a name with the machine, the ID and the start time of a process. Without /proc, the
    name is random, and nobody can detect that the process has died."""
    machine = _machine_id()
    return f"{machine}-{pid}-{_start_time(pid)}" if machine else f"-{pid}-{uuid.uuid4().hex}"


def this_process() -> str:
    """Return the name of this process."""
    return _process_name(os.getpid())


def is_dead(name: str) -> bool:
    """Return whether a process has certainly ended: it ran on this machine and is gone."""
    machine, _, process = name.partition("-")
    pid, _, started = process.partition("-")
    if not pid.isdecimal() or machine != _machine_id() or not machine:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # /proc may hide processes of other users. Callers rely on the heartbeat
    except OverflowError:
        return False  # the name is damaged
    return _start_time(int(pid)) != started


@cache
def _machine_id() -> str:
    """Return a hash of the boot ID and the PID namespace, which differs between containers. Empty
    if one of them is unknown."""
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
    """Return the identity of a job: "namespace/name (uid)" for all attempts of a BatchInference
    object. For job files, it is "name on host": the same for all runs on a machine."""
    metadata = job.metadata
    uid = (metadata.model_extra or {}).get("uid")
    if uid:
        return f"{metadata.namespace}/{metadata.name} ({uid})"
    return f"{metadata.name} on {socket.gethostname()}"


def without_uid(identity: str) -> str:
    """Return the part of an identity that stays the same if a BatchInference is created again."""
    return identity.partition(" (")[0]


def is_cluster_job(identity: str) -> bool:
    """Return whether the identity is of a BatchInference object. Such a job runs once, in one or
    more attempts. A job file can be run any number of times."""
    return identity.endswith(")")
