"""Free ports for servers that tests start."""

from __future__ import annotations

import itertools
import os
import socket

FIRST, EACH, WORKERS = 20_000, 150, 80
"""Each worker of pytest-xdist has its own ports. They are below the ports that the system assigns
to clients, so that no client and no other worker uses a port before its server does."""
_counter = itertools.count()


def free_port() -> int:
    """Return a port of this worker that is free and that was not returned recently."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    for number in itertools.islice(_counter, EACH):
        port = FIRST + worker * EACH + number % EACH
        if _is_free(port):
            return port
    raise RuntimeError(f"no free port from {FIRST + worker * EACH} on")


def _is_free(port: int) -> bool:
    with socket.socket() as socket_:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            socket_.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
