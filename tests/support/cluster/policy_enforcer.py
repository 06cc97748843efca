"""Enforces the NetworkPolicies of the cluster, as a network plugin would: its rules follow the
pods and the policies.

Run as a program, it stops at the end of its input, and removes the rules.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster.disruptions import in_node
from support.cluster.kubectl import run
from support.cluster.network_policies import REMOVE, rules

INTERVAL = 0.5
"""Seconds between two looks at the cluster."""
TESTS = Path(__file__).resolve().parents[2]


@contextmanager
def policies_enforced(nodes: list[str]) -> Iterator[None]:
    """Enforce the NetworkPolicies on these nodes while the block runs.

    The process in a session of its own removes its rules also if the tests are killed.
    """
    command = [sys.executable, "-m", __name__, *nodes]
    with subprocess.Popen(
        command, cwd=TESTS, start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline(), "the NetworkPolicies cannot be enforced"
        yield
        assert process.poll() is None, "the NetworkPolicies are no longer enforced"


def enforce(nodes: list[str]) -> None:
    """Enforce the NetworkPolicies until the input ends. Print a line when rules are in place."""
    applied = ""
    try:
        while True:
            result = rules(_objects())
            if result != applied:
                _apply(nodes, result)
                print("applied", flush=True)
                applied = result
            if select.select([sys.stdin], [], [], INTERVAL)[0]:
                return
    finally:
        _apply(nodes, REMOVE)


def _objects() -> list[dict[str, object]]:
    kinds = "namespaces,pods,networkpolicies"
    command = ["kubectl", "get", kinds, "--all-namespaces", "--output", "json"]
    items: list[dict[str, object]] = json.loads(run(command))["items"]
    return items


def _apply(nodes: list[str], text: str) -> None:
    for node in nodes:
        in_node(node, "nft", "--file", "-", text=text)


if __name__ == "__main__":
    enforce(sys.argv[1:])
