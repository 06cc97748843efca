"""Reads one file per line of its input, like a job, and reports the memory and CPU time used."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.planning import count_rows
from support.inputs.read_files import open_input

HEADROOM = 3 << 30
"""Bytes of address space that a worker may use in addition to those at its start."""
MAX_ROWS = 200_000
"""Rows after which a worker stops reading. Valid files may have more."""


def read(format_: str, path: str, options: dict[str, object]) -> str:
    """Read a file and return the outcome. Other exceptions than JobFailure, which would end a job
    without a cause, are not caught."""
    try:
        opened = open_input(format_, path, **options)
        count_rows(opened.frozen, opened.file_rows.reader, {})
        rows = 0
        for batch in opened.file_rows.read(opened.frozen.files()):
            rows += len(batch.source)
            if rows > MAX_ROWS:
                break
    except JobFailure as error:
        return f"refused: {error}"
    return "read"


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    used = _memory("VmSize") + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (used, used))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak (VmHWM)
        before, begun = _memory("VmRSS"), time.process_time()
        try:
            told, failed = read(**json.loads(line)), False
        except BaseException:  # noqa: BLE001 - these are the bugs to find
            told, failed = traceback.format_exc(), True
        memory, seconds = _memory("VmHWM") - before, time.process_time() - begun
        answer = {"told": told[-4000:], "failed": failed, "memory": memory, "seconds": seconds}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
