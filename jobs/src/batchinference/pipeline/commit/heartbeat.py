"""Writes the heartbeat of a run, and waits for the heartbeat of another run.

Clocks are not compared: a run that finds the unfinished output of another run waits for the next
heartbeat, and takes over if there is none.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, is_dead, is_resource, this_process
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

HEARTBEAT_SECONDS = 10.0
LEASE_TIMEOUT_SECONDS = 25.0
"""Long enough to tolerate one late heartbeat."""


@contextmanager
def keep_heartbeat(file: Location) -> Iterator[None]:
    """Write the heartbeat of a run to this file while the block runs. Each heartbeat is a new
    random value, so that a waiting run notices it."""
    ended = threading.Event()

    def beat() -> None:
        # without a beat, the run may lose its lease, which it then detects
        with suppress(OSError):
            file.write(uuid.uuid4().hex.encode())

    def keep_beating() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            beat()

    beat()
    thread = threading.Thread(target=keep_beating, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(HEARTBEAT_SECONDS)  # do not wait longer for unavailable storage


def heartbeat_file(layout: Layout, lease: Lease) -> Location:
    """Return the heartbeat file of a run. After the attempt has begun, it is in the directory of
    the attempt."""
    return (lease.place(layout) if lease.begun else layout.state) / "heartbeat"


def ensure_not_running(layout: Layout, lease: Lease | None, identity: str) -> bool:
    """Return whether the heartbeat of another run was awaited. The run may have completed the
    output meanwhile.

    Raises BadOutput if another run, of this job or another job, is writing to the output."""
    if lease is None or _has_ended(lease, identity) or lease.is_complete(layout):
        return False
    file, deadline = heartbeat_file(layout, lease), time.monotonic() + LEASE_TIMEOUT_SECONDS
    before = _read_heartbeat(file)
    while time.monotonic() < deadline:
        time.sleep(min(1.0, LEASE_TIMEOUT_SECONDS / 10))
        if _read_heartbeat(file) != before:
            raise BadOutput(
                f"spec.write.path: '{layout.output.uri}' is being written by {lease.job}. Choose "
                "another path, or wait until that has ended"
            )
    return True


def _has_ended(lease: Lease, identity: str) -> bool:
    """Return whether a run is known to have ended, so that its heartbeat need not be awaited.

    The operator starts an attempt only after it has stopped the previous one."""
    stopped = lease.job == identity and (is_resource(identity) or lease.process == this_process())
    return stopped or is_dead(lease.process)


def _read_heartbeat(file: Location) -> bytes:
    return file.read_if_exists() or b""
