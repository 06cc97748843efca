"""Reads files like a job, in a separate process, and reports the problems that they cause.

Each line of its input is a request in JSON: for one file, or for a range of damaged files."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
import traceback
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

import pyarrow as pa

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.planning import count_rows
from batchinference.pipeline.storage import retry
from support.fuzzing.mutations import damaged_file
from support.fuzzing.seeds import Target, target
from support.inputs.read_files import open_input

MAX_MEMORY = 5 << 28
"""The limit of the memory for decoding, 1 GiB, and what the allocator keeps besides."""
MAX_SECONDS = 20.0
"""Maximum CPU time for a file."""
HEADROOM = 3 << 30
"""Bytes of address space that a worker may use in addition to those at its start."""
MAX_ROWS = 200_000
"""Rows after which a worker stops reading. Valid files may have more."""


def read(format_: str, path: str, options: dict[str, object]) -> None:
    """Read a file. Raises any exception except for JobFailure, which ends a job with a cause."""
    try:
        opened = open_input(format_, path, **options)
        count_rows(opened.frozen, opened.file_rows.reader, {})
        rows = 0
        for batch in opened.file_rows.read(opened.frozen.files()):
            rows += len(batch.source)
            if rows > MAX_ROWS:
                break
    except JobFailure:
        pass


def problem(format_: str, path: str, options: dict[str, object]) -> str | None:
    """Read a file, and return the problem that this causes, or None."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (VmHWM)
    before, begun = _memory("VmRSS"), time.process_time()
    try:
        read(format_, path, options)
    except BaseException:  # noqa: BLE001 - these are the bugs to find
        return f"the job fails: {traceback.format_exc()[-4000:]}"
    if (seconds := time.process_time() - begun) > MAX_SECONDS:
        return f"it takes {seconds:.0f} s"
    if (memory := _memory("VmHWM") - before) > MAX_MEMORY:
        return f"it takes {memory >> 20} MiB of memory"
    return None


def without_network() -> None:
    """Disable name resolution and retries, so that damaged addresses reach no server.

    Otherwise a few addresses would take most of the time."""

    def unknown(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "no network")

    socket.getaddrinfo = unknown
    retry.HTTP = replace(retry.HTTP, attempts=1)


def fuzz(answers: IO[str], name: str, directory: str, seed: int, start: int, stop: int) -> None:
    """Read the damaged files of a range. The number of each is written before it is read."""
    made = _target(name, Path(directory))
    for number in range(start, stop):
        print(number, file=answers, flush=True)
        path = damaged_file(made, Path(directory), seed, number)
        if (found := problem(made.format, str(path), made.options)) is not None:
            print(json.dumps(found), file=answers, flush=True)
        path.unlink()


@lru_cache(maxsize=1)
def _target(name: str, directory: Path) -> Target:
    return target(name, directory / "seeds")


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def main() -> None:
    without_network()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    used = _memory("VmSize") + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "path" in request:
            pa.default_memory_pool().release_unused()  # what it keeps would hide an allocation
            print(json.dumps(problem(**request)), file=answers, flush=True)
        else:
            fuzz(answers, **request)
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
