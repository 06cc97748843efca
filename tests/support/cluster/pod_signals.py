"""Sends signals to processes in the pods of Ray clusters."""

from __future__ import annotations

from typing import Any

from support.cluster.kubectl import Kubectl

SIGNAL = """
import os, signal, glob, sys
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        command = open(path, "rb").read().replace(b"\\0", b" ")
    except OSError:
        continue
    if sys.argv[1].encode() in command and b"glob" not in command:
        os.kill(int(path.split("/")[2]), getattr(signal, sys.argv[2]))
"""


def signal(kubectl: Kubectl, pod: dict[str, Any], process: str, which: str) -> None:
    """Send a signal to the processes of a pod whose command line contains a text."""
    name = pod["metadata"]["name"]
    kubectl("exec", name, "--container", "ray", "--", "python", "-c", SIGNAL, process, which)
