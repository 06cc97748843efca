"""Names of processes, by which a run detects that another run on the same machine has died."""

from __future__ import annotations

import hashlib
import os
import uuid
from functools import cache
from pathlib import Path

_PROC = Path("/proc")


@cache
def _name(pid: int) -> str:
    """Return the machine, the process id and the start time of a process.

    Without /proc, the name is random: then nobody can detect that the process has died."""
    machine = _machine()
    return f"{machine}-{pid}-{_started(pid)}" if machine else f"-{pid}-{uuid.uuid4().hex}"


def this_process() -> str:
    """Return the name of this process."""
    return _name(os.getpid())


def is_dead(name: str) -> bool:
    """Return whether a process has certainly ended: it ran on this machine and no longer exists."""
    machine, _, process = name.partition("-")
    pid, _, started = process.partition("-")
    if not pid.isdecimal() or machine != _machine() or not machine:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False  # another user's process, which /proc may hide: its heartbeat decides
    return _started(int(pid)) != started


@cache
def _machine() -> str:
    """Return a hash of the boot id and the PID namespace; empty if they are unknown.

    Containers with the same host name have PID namespaces of their own."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if it has ended."""
    try:
        state, *fields = (_PROC / f"{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
