"""Refuses a later run of an output while the run that holds its lease is alive.

A run writes a heartbeat. Clocks are not compared: a run that finds the unfinished output of another
run waits for the next heartbeat, and takes over if there is none.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, is_dead, this_process
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.job import BatchInference

HEARTBEAT_SECONDS = 10.0
LEASE_TIMEOUT_SECONDS = 25.0
"""Long enough to tolerate one late heartbeat."""


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
    once, however many attempts that takes. A job file on a machine may be run again and again."""
    return identity.endswith(")")


@contextmanager
def keep_heartbeat(file: Location) -> Iterator[None]:
    """Write the heartbeat of a run to this file for as long as the block runs."""
    ended = threading.Event()

    def beat(number: int) -> None:
        with suppress(OSError):  # the run may lose its lease, which it then detects
            file.write(str(number).encode())

    def beat_until_the_end() -> None:
        for number in itertools.count(1):
            if ended.wait(HEARTBEAT_SECONDS):
                return
            beat(number)

    beat(0)
    thread = threading.Thread(target=beat_until_the_end, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(HEARTBEAT_SECONDS)  # do not wait longer for unavailable storage


def heartbeat_file(layout: Layout, lease: Lease) -> Location:
    """Return the heartbeat file of a run. It is in the directory of the attempt once that has
    begun."""
    return (lease.place(layout) if lease.begun else layout.state) / "heartbeat"


def ensure_not_running(layout: Layout, lease: Lease | None, identity: str) -> None:
    """Raise BadOutput if another run, of this job or another job, is writing to the output."""
    if lease is None or lease.is_complete(layout) or _is_over(lease, identity):
        return
    place, deadline = heartbeat_file(layout, lease), time.monotonic() + LEASE_TIMEOUT_SECONDS
    before = _read(place)
    while time.monotonic() < deadline:
        time.sleep(min(1.0, LEASE_TIMEOUT_SECONDS / 10))
        if _read(place) != before:
            raise BadOutput(
                f"write.path '{layout.output.uri}' is being written by {lease.job}: choose another "
                "path, or wait until that has ended"
            )


def _is_over(lease: Lease, identity: str) -> bool:
    """Return whether a run is known to have ended, so that its heartbeat need not be awaited.

    The operator starts an attempt only after it has stopped the previous one."""
    own = lease.job == identity and (is_resource(identity) or lease.process == this_process())
    return own or is_dead(lease.process)


def _read(place: Location) -> bytes:
    try:
        return place.read()
    except FileNotFoundError:
        return b""
