"""The memory of a verification does not grow with the number of input or output rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.documents.minimal import Document
from support.jobs.on_ray import job_document
from support.outputs.builders import make_output

LINE = "a" * 1000 + "\n"
FEW, MANY = 4_000, 40_000
MORE_MEMORY = 16 << 20
"""The limit, in bytes, on the extra memory of the larger run, which reads 72 MB more."""
VERIFY = """
import re, sys
from pathlib import Path
from batchinference.pipeline.input.readers import records
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify import file_check, row_check
from batchinference.pipeline.verify import verify as verification
from batchinference.pipeline.verify.verify import verify

# so that the smaller run fills its buffers
records.CHUNK_BYTES = file_check.CHUNK_BYTES = 1 << 18
verification.THREADS = row_check.THREADS = 2
proof = verify(Location(sys.argv[1]))
# ru_maxrss would count what the parent had
(peak,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(proof.result, int(peak) * 1024)
"""


def peak_memory(directory: Path, rows: int, write: Document) -> int:
    """Return the peak memory of a verification of this many rows, in bytes."""
    (directory / f"{rows}.txt").write_text(LINE * rows)
    out = directory / f"out-{rows}"
    make_output(job_document("many", directory / f"{rows}.txt", out, write=write), tasks=1)
    done = subprocess.run([sys.executable, "-c", VERIFY, str(out)],
                          capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    result, peak = done.stdout.split()
    assert result == "proven"
    return int(peak)


@pytest.mark.long("memory")
@pytest.mark.parametrize(
    "write",
    [{"format": "json"}, {"format": "csv", "compression": "gzip"}],
    ids=["json", "csv, packed"],
)
def test_memory_does_not_grow_with_rows(tmp_path: Path, write: Document) -> None:
    few, many = (peak_memory(tmp_path, rows, write) for rows in (FEW, MANY))
    assert many < few + MORE_MEMORY
