"""What commands that only read import: no Ray and no pandas, which take longer than they do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.arrow import to_column
from support.documents.minimal import Document, document
from support.jobs.without_ray import run_without_ray

HEAVY = {
    *("PIL", "cloudpickle", "dateutil", "jinja2", "lance", "numpy", "numpy.ma", "pandas"),
    *("pyarrow", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "ray", "rich"),
    *("torch", "transformers"),
}
STATE = {"numpy", "pyarrow"}
ALLOWED = {
    "--help": set(),
    "errors": {*STATE, "pyarrow.parquet"},
    "verify": {*STATE, "pyarrow.compute", "pyarrow.parquet"},
    "ui": {*STATE, "jinja2", "pyarrow.parquet"},
}
"""The heavy modules that commands need. Others need those that read the state of an output."""
COMMANDS = ["--help", "status", "list", "errors", "logs", "verify", "ui"]
PROGRAM = """
import http.server, json, sys
from batchinference.cli.main import app

def interrupted(server):
    raise KeyboardInterrupt

http.server.ThreadingHTTPServer.serve_forever = interrupted
command, *arguments = sys.argv[1:]
code = app([command, *arguments], standalone_mode=False)
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""
READER = """
import sys
from batchinference.pipeline.input.readers.parquet import ParquetReader
from batchinference.pipeline.type_widening import is_tensor
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import ParquetOptions

assert "ray" not in sys.modules
reader, file = ParquetReader(ParquetOptions()), Location(sys.argv[1])
if sys.argv[2] == "stats":
    print(is_tensor(reader.stats(file, file.info().size).schema.field("t").type))
else:
    print(*(is_tensor(table.schema.field("t").type) for table in reader.read(file)))
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("read")
    (directory / "in").mkdir()
    rows = ({"id": number, "n": 3 - number} for number in range(5))
    (directory / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job: Document = document(
        "read",
        read={"format": "json", "paths": [str(directory / "in")]},
        steps=[{"name": "cut", "python": {"callable": "support.jobs.warning_steps:cut"}}],
        write={"format": "parquet", "path": str(directory / "out")},
        errors={"maxRows": 1},
    )
    run_without_ray(job)
    logs = directory / "out" / "_batchinference" / "logs"
    logs.mkdir()
    (logs / "2026-01-01T000000Z-pass-1.log").write_text("read: preparing\n")
    return directory / "out"


@pytest.mark.parametrize("command", COMMANDS)
def test_command_that_only_reads_imports_no_heavy_package(output: Path, command: str) -> None:
    arguments = {"--help": [], "ui": [str(output), "--no-browser", "--port", "0"]}
    done = run(PROGRAM, command, *arguments.get(command, [str(output)]))
    *_, last = done.stderr.splitlines()
    code, imported = json.loads(last)
    assert done.stdout
    assert not code, done.stderr
    assert HEAVY.intersection(imported) <= ALLOWED.get(command, STATE)


@pytest.mark.parametrize("how", ["stats", "read"])
def test_tensors_are_read_as_tensors_before_ray_is_imported(tmp_path: Path, how: str) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"t": to_column(np.zeros((2, 3, 4)))}), file)
    assert run(READER, str(file), how).stdout.split() == ["True"]
