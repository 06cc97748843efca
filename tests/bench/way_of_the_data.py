"""Prints the modules that a row enters, in the order of their first call, and their number
(docs/contributing/architecture.md).

Runs jobs in one process without Ray. Counted is one pass, from the list of input files to the
manifest: reading, steps, the commit. `run` counts a whole run. A module is entered when one of its
functions is called; in a pass, modules of `spec`, and those that only hold types, are left out.

    python tests/bench/way_of_the_data.py          # a job without pools
    python tests/bench/way_of_the_data.py model    # a job with a pool, which runs a model
    python tests/bench/way_of_the_data.py failing  # a row that fails, without the other rows
    python tests/bench/way_of_the_data.py run      # the first job, from its command to its end
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from support.documents.minimal import Document, document
from support.jobs.without_ray import InProcessExecution, invoke_without_ray, run_without_ray

STEP = {"name": "upper", "addColumns": {"upper": "text + '!'"}}
CODE = {"name": "length", "python": {"callable": "bench_steps:Length"}}
MODEL = {
    "name": "model",
    "model": {
        "runtime": "torch",
        "factory": "bench_steps:identity",
        "inputs": {"x": "x"},
        "output": "y",
    },
    "replicas": {},
}
PACKAGE = "batchinference.pipeline."
entered: dict[str, None] = {}


def note_module(frame: FrameType, event: str, _: object) -> None:
    name = frame.f_globals.get("__name__", "")
    if (
        event == "call"
        and name.startswith("batchinference.")
        and frame.f_code.co_name != "<module>"
    ):
        entered.setdefault(name)


@contextmanager
def noted() -> Iterator[None]:
    """Note the modules that are entered in the block."""
    threading.setprofile(note_module)
    sys.setprofile(note_module)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def job(directory: Path, way: str) -> Document:
    texts = ["bad"] if way == "failing" else ["a", "b", "c"]
    (directory / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), directory / "in.parquet")
    kind, file = ("parquet", "in.parquet") if way == "model" else ("text", "in.txt")
    return document(
        "way",
        read={"format": kind, "paths": [str(directory / file)]},
        steps=[MODEL] if way == "model" else [STEP, CODE],
        write={"format": "parquet", "path": str(directory / "out")},
        errors={"maxRows": 1},
    )


def modules_of(way: str) -> list[str]:
    """Return the modules that the rows of a job enter, in the order of their first call."""
    entered.clear()
    run = InProcessExecution.run

    def noted_run(self: InProcessExecution) -> None:
        with noted():
            run(self)

    with (
        tempfile.TemporaryDirectory() as directory,
        patch.object(InProcessExecution, "run", noted_run),
    ):
        report = run_without_ray(job(Path(directory), way))
    assert report.state == "succeeded", report
    return [name.removeprefix(PACKAGE) for name in entered if name.startswith(PACKAGE)]


def modules_of_run() -> list[str]:
    """Return the modules that a whole run enters, from its command to its end."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "job.yaml")
        file.write_text(yaml.safe_dump(job(file.parent, "")))
        with noted():
            done = invoke_without_ray("run", str(file))
    assert done.exit_code == 0, done.output
    return [*entered]


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    modules = modules_of_run() if given == "run" else modules_of(given)
    print("\n".join(modules))
    print(len(modules), "modules")
