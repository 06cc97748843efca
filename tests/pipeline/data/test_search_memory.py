"""The memory of a search does not grow with the number of rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.outputs.builders import embedded, finished_output, vectors

ROWS_A_FILE, WIDTH = 8000, 256
FEW, MANY = 2, 24
BYTES_A_FILE = ROWS_A_FILE * WIDTH * 4
MORE_MEMORY = 32 << 20
"""Bytes that the larger search may take more: less than a fifth of its additional input."""
SEARCH = """
import resource, sys
import numpy as np
from batchinference.pipeline.search.index import open_index
from batchinference.pipeline.search.search import search
from batchinference.pipeline.storage.location import Location

index = open_index(Location(sys.argv[1]))
queries = np.random.default_rng(1).standard_normal((int(sys.argv[2]), index.width))
found = search(index, queries, 5)
index.take(found.rows[0], ["text"])
print(index.starts[-1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return finished outputs by number of files. All files of an output are links to one."""
    directory = tmp_path_factory.mktemp("outputs")
    text = np.char.mod("a text of some length %d", np.arange(ROWS_A_FILE))
    table = embedded(vectors(ROWS_A_FILE, WIDTH), text=text)
    made = {}
    for files in (FEW, MANY):
        out = Path(finished_output(directory / str(files), table))
        for number in range(1, files):
            os.link(out / "part-0000.parquet", out / f"part-{number:04d}.parquet")
        made[files] = str(out)
    return made


def peak_memory(output: str, queries: int) -> tuple[int, int]:
    """Return the rows of the output and the peak memory of a search in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, output, str(queries)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    rows, peak = map(int, done.stdout.split())
    return rows, peak


@pytest.mark.long("memory")
@pytest.mark.parametrize("queries", [1, 200])
def test_memory_does_not_grow_with_rows(outputs: dict[int, str], queries: int) -> None:
    assert MORE_MEMORY * 5 < (MANY - FEW) * BYTES_A_FILE
    few_rows, few = peak_memory(outputs[FEW], queries)
    many_rows, many = peak_memory(outputs[MANY], queries)
    assert many_rows == few_rows * MANY // FEW
    assert many < few + MORE_MEMORY
