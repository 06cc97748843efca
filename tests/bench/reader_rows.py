"""Reads an input in this process, without Ray, and prints the CPU seconds. Argument: `read` (JSON).

CPU seconds vary less than elapsed time on a shared machine. The input is read several times, and
the fastest time counts: the first time imports libraries and fills caches. The program also runs
with the sources of older commits."""

from __future__ import annotations

import json
import sys
import time

from batchinference.pipeline.input.files import open_input
from batchinference.spec import parse
from support.documents.minimal import document

TIMES = 4


def main() -> None:
    read = json.loads(sys.argv[1])
    spec = parse(document("read", read=read, write={"format": "json", "path": "/nowhere"})).spec
    seconds = []
    for _ in range(TIMES):
        began = time.process_time()
        rows = sum(
            len(batch.ids) for task in open_input(spec.read).read_tasks(1) for batch in task()
        )
        seconds.append(time.process_time() - began)
    print(json.dumps({"rows": rows, "seconds": min(seconds)}))


if __name__ == "__main__":
    main()
