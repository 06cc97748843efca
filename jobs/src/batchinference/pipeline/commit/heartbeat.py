"""Writes the heartbeat of a run, and waits for the heartbeat of another run.

A run may find an unfinished output of another run. It then waits for a new heartbeat of the other
run, and takes over the output if there is none. Clocks of machines are not compared."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from batchinference.pipeline.commit.lease import Lease, is_cluster_job, is_dead, this_process
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location

_running: set[tuple[str, str | None]] = set()
"""The state directories and endpoints of the outputs that runs in this process write."""
_lock = threading.Lock()


@contextmanager
def only_run_in_process(layout: Layout) -> Iterator[None]:
    """Raise BadOutput if another run in this process, such as in another thread, writes this
    output. During the block, refuse other runs. `ensure_not_running` cannot do this: it considers
    earlier runs of a job in its own process as ended."""
    state = (layout.state.library_uri, layout.state.storage.endpoint)
    with _lock:
        if state in _running:
            raise BadOutput(
                f"spec.write.path: '{layout.output.uri}' is being written by another run in this "
                "process. Choose another path, or wait until that run has ended"
            )
        _running.add(state)
    try:
        yield
    finally:
        _running.discard(state)


@contextmanager
def keep_heartbeat(layout: Layout, lease: Lease) -> Iterator[None]:
    """Write random values to the heartbeat file of a run at regular intervals during the block."""
    file, ended = heartbeat_file(layout, lease), threading.Event()

    def beat() -> None:
        # if this fails for long, another run takes over the output, and this run detects that
        with suppress(OSError):
            file.write(uuid.uuid4().hex.encode())

    def keep_beating() -> None:
        while not ended.wait(layout.heartbeat_seconds):
            beat()

    beat()
    thread = threading.Thread(target=keep_beating, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(layout.heartbeat_seconds)  # do not wait longer for unavailable storage


def heartbeat_file(layout: Layout, lease: Lease) -> Location:
    """Return the heartbeat file of a run. It is in the directory of the pass, or in the state
    directory before the first pass."""
    return (lease.pass_directory(layout) if lease.begun else layout.state) / "heartbeat"


def ensure_not_running(layout: Layout, lease: Lease | None, identity: str) -> bool:
    """Raise BadOutput if the run that has this lease is writing to the output. Does not wait for a
    heartbeat if that run has ended or has completed the output. Returns whether it has waited: the
    other run may have completed the output meanwhile."""
    if lease is None or _has_ended(lease, identity) or lease.has_completed(layout):
        return False
    file, deadline = heartbeat_file(layout, lease), time.monotonic() + layout.lease_timeout
    before = _read_heartbeat(file)
    while time.monotonic() < deadline:
        time.sleep(min(1.0, layout.lease_timeout / 10))
        if _read_heartbeat(file) != before:
            raise BadOutput(
                f"spec.write.path: '{layout.output.uri}' is being written by {lease.job}. Choose "
                "another path, or wait until that job has ended"
            )
    return True


def _has_ended(lease: Lease, identity: str) -> bool:
    """Return whether the run with this lease has certainly ended. An earlier attempt of the same
    BatchInference object has, because the operator stops an attempt before it starts the next."""
    is_alone = is_cluster_job(identity) or lease.process == this_process()
    return (lease.job == identity and is_alone) or is_dead(lease.process)


def _read_heartbeat(file: Location) -> bytes:
    return file.read_if_exists() or b""
