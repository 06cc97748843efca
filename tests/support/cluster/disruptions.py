"""Disruptions of the cluster itself. They call programs that differ between clusters."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from support.cluster.kubectl import eventually, run

RESTART_API_SERVER = os.environ.get(
    "RESTART_API_SERVER", "tests/tools/restart-api-server batchinference"
)
"""The command that kills the API server and starts it again."""
SECOND_NODE = os.environ.get("SECOND_NODE", "tests/tools/second-node batchinference")
"""The command that starts a second node (`up`) or cuts its power (`kill`)."""
KUEUE = os.environ.get("KUEUE", "tests/tools/kueue")
"""The command that installs (`up`) or uninstalls (`down`) Kueue with elastic jobs."""
IN_NODE = os.environ.get("IN_NODE", "docker exec --interactive")
"""The command that runs a program in the network namespace of a node."""


def restart_api_server() -> None:
    """Kill the API server, and wait until it answers again."""
    run(shlex.split(RESTART_API_SERVER))
    eventually("the API server answers", _api_server_is_ready, timeout=120)


def _api_server_is_ready() -> bool:
    command = ["kubectl", "get", "--raw", "/readyz", "--request-timeout=5s"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def second_node(action: str) -> None:
    run([*shlex.split(SECOND_NODE), action], timeout=300)


def in_node(node: str, *command: str, text: str = "") -> str:
    """Run a program in the network namespace of a node, and return its output."""
    return run([*shlex.split(IN_NODE), node, *command], text=text)


@contextmanager
def kueue_installed() -> Iterator[None]:
    """Install Kueue while the block runs. If that fails, nothing of it remains."""
    try:
        run([*shlex.split(KUEUE), "up"], timeout=900)
        yield
    finally:
        run([*shlex.split(KUEUE), "down"], timeout=180)
