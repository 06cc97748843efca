"""Prints the modules that a row enters, in this order, and their number
(docs/contributing/architecture.md).

Runs jobs in one process without Ray, from the prepared attempt to the end of the pass: reading, a
step, a model, the commit. A module is entered when one of its functions is called; modules of
`spec`, and those that only hold types, are left out.

    python tests/bench/way_of_the_data.py          # a job without pools
    python tests/bench/way_of_the_data.py pool     # a job with a pool
    python tests/bench/way_of_the_data.py failing  # a row that fails, without the other rows
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from support.documents.minimal import Document, document
from support.jobs.without_ray import InProcessExecution, run_without_ray

STEP = {"name": "upper", "addColumns": {"upper": "text + '!'"}}
CODE = {"name": "length", "python": {"callable": "bench_steps:Length"}}
PACKAGE = "batchinference.pipeline."
entered: dict[str, None] = {}


def note_module(frame: FrameType, event: str, _: object) -> None:
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith(PACKAGE) and frame.f_code.co_name != "<module>":
        entered.setdefault(name.removeprefix(PACKAGE))


def job(directory: Path, way: str) -> Document:
    (directory / "in").mkdir()
    texts = ["bad"] if way == "failing" else ["a", "b", "c"]
    (directory / "in/a.txt").write_text("".join(f"{text}\n" for text in texts))
    pool = {"replicas": {}} if way == "pool" else {}
    return document(
        "way",
        read={"format": "text", "paths": [str(directory / "in")]},
        steps=[STEP, {**CODE, **pool}],
        write={"format": "parquet", "path": str(directory / "out")},
        errors={"maxRows": 1},
    )


def modules_of(way: str) -> list[str]:
    """Return the modules that the rows of a job enter, in the order of their first call."""
    entered.clear()
    run = InProcessExecution.run

    def noted_run(self: InProcessExecution) -> None:
        threading.setprofile(note_module)
        sys.setprofile(note_module)
        try:
            run(self)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    InProcessExecution.run = noted_run  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as directory:
            report = run_without_ray(job(Path(directory), way))
    finally:
        InProcessExecution.run = run  # type: ignore[method-assign]
    assert report.state == "succeeded", report
    return [*entered]


if __name__ == "__main__":
    modules = modules_of(sys.argv[1] if len(sys.argv) > 1 else "")
    print("\n".join(modules))
    print(len(modules), "modules")
