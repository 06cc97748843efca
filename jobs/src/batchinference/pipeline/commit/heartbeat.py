"""Several runs that want one output: the later one is refused while the first one lives.

A run writes a heartbeat. Clocks are not compared: a run that finds the unfinished output of another
one waits for a further heartbeat, and takes over if there is none.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease
from batchinference.pipeline.commit.process_id import is_dead, this_process
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInference

HEARTBEAT_SECONDS = 10.0
LEASE_TIMEOUT_SECONDS = 25.0
"""Enough for one beat that is late."""


def identity_of(job: BatchInference) -> str:
    """By what a job is told from others that write to the same place: all attempts at it have the
    same, and so have all runs of a file on one machine."""
    metadata = job.metadata
    uid = (metadata.model_extra or {}).get("uid")
    if uid:
        return f"{metadata.namespace}/{metadata.name} ({uid})"
    return f"{metadata.name} on {socket.gethostname()}"


def name_of(identity: str) -> str:
    """What stays the same of it when a resource is made anew."""
    return identity.partition(" (")[0]


def is_resource(identity: str) -> bool:
    """Whether it is of a resource on a cluster, which asks for its work once, however many attempts
    that takes. A file on a machine may be run again and again."""
    return identity.endswith(")")


@contextmanager
def keep_heartbeat(place: Callable[[], Location]) -> Iterator[None]:
    """Say that a run goes on for as long as the block does. `place` tells where."""
    ended = threading.Event()

    def beat(number: int) -> None:
        with suppress(OSError):  # who cannot say it may be taken for dead, and then notices
            place().write(str(number).encode())

    def go_on() -> None:
        for number in itertools.count(1):
            if ended.wait(HEARTBEAT_SECONDS):
                return
            beat(number)

    beat(0)
    thread = threading.Thread(target=go_on, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(HEARTBEAT_SECONDS)  # storage that is away is not waited for


def heartbeat_file(layout: Layout, lease: Lease) -> Location:
    """Where a run says that it goes on: in the directory of its attempt, once it has begun one."""
    return (lease.place(layout) if lease.begun else layout.state) / "heartbeat"


def ensure_not_running(layout: Layout, lease: Lease | None, identity: str) -> None:
    """Raise BadOutput when another run is writing there, of this job or of another one."""
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
    """Whether a run is known to have ended, so that nobody waits for its heartbeat.

    The operator starts an attempt only when it has stopped the one before."""
    own = lease.job == identity and (is_resource(identity) or lease.process == this_process())
    return own or is_dead(lease.process)


def _read(place: Location) -> bytes:
    try:
        return place.read()
    except FileNotFoundError:
        return b""
