"""Kills a process of this container whose command line matches: kill_process.py PATTERN SEED

Prints the command line of the killed process. The exit code is 3 if no process matches.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
from pathlib import Path


def processes(pattern: str) -> dict[int, str]:
    """Return the command lines of the matching processes, by process id."""
    result = {}
    for file in Path("/proc").glob("[0-9]*"):
        try:
            command = (file / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:  # the process has ended
            continue
        if re.search(pattern, command) and int(file.name) != os.getpid():
            result[int(file.name)] = command
    return result


def main() -> None:
    result = processes(sys.argv[1])
    if not result:
        sys.exit(3)
    chosen = random.Random(int(sys.argv[2])).choice(sorted(result))
    os.kill(chosen, signal.SIGKILL)
    print(result[chosen])


if __name__ == "__main__":
    main()
