"""Runs a command, and prints its CPU time in seconds and its peak memory in MiB.

    python tests/bench/command_usage.py COMMAND...

This process is small, because Linux counts the memory of the process that starts a command for the
command. A command that prints an address to open serves it until it is interrupted.
"""

import resource
import signal
import subprocess
import sys


def main() -> int:
    with subprocess.Popen(
        sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as command:
        for line in command.stdout or ():
            if line.startswith(b"Open http"):
                command.send_signal(signal.SIGINT)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
