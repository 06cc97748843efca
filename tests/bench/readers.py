"""Compares the speed of the readers with the sources of an older commit, without Ray.

    csv      1 million rows with an id, a price, a date and a text
    json     300,000 rows with the same fields
    parquet  8 million rows with the same fields
    images   600 JPEGs of 400 x 300 pixels, resized to 224 x 224

Each run is a separate process, which measures its CPU time. Runs of both sources alternate. The
last lines are the ratios of the medians of rows per CPU second.
`make readers FROM=COMMIT` runs this.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pac
import pyarrow.parquet as pq
from rounds import ROUNDS, sized
from stop_signals import exit_on_signals
from throughput import images

ROOT = Path(__file__).parents[2]
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
CASES: dict[str, tuple[int, dict[str, object]]] = {
    "csv": (sized(1_000_000), {}),
    "json": (sized(300_000), {}),
    "parquet": (sized(8_000_000), {}),
    "images": (sized(600), {"size": [224, 224]}),
}


def table(rows: int) -> pa.Table:
    generator = np.random.default_rng(0)
    words = np.array(WORDS)[generator.integers(0, len(WORDS), (rows, 6))]
    first = dt.date(2020, 1, 1).toordinal() - dt.date(1970, 1, 1).toordinal()
    return pa.table(
        {
            "id": np.arange(rows),
            "price": np.round(generator.random(rows) * 100, 2),
            "day": pa.array(first + generator.integers(0, 2000, rows), pa.int32()).cast(
                pa.date32()
            ),
            "text": [" ".join(row) for row in words] if rows <= 1_000_000 else words[:, 0],
        }
    )


def write(name: str, directory: Path) -> None:
    rows = CASES[name][0]
    writers: dict[str, Callable[[], object]] = {
        "csv": lambda: pac.write_csv(table(rows), directory / "a.csv"),
        "json": lambda: (directory / "a.jsonl").write_text(
            table(rows).to_pandas().to_json(orient="records", lines=True, date_format="iso")
        ),
        "parquet": lambda: pq.write_table(table(rows), directory / "a.parquet"),
        "images": lambda: images(directory, rows),
    }
    writers[name]()


def speed(source: Path, read: dict[str, object]) -> float:
    """Return the rows per second of the sources in a checkout."""
    paths = [source / "jobs/src", source / "operator/src", source / "tests"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, str(Path(__file__).with_name("reader_rows.py")), json.dumps(read)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout)
    return float(result["rows"] / result["seconds"])


def main() -> None:
    older = Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        options = CASES[name][1]
        with tempfile.TemporaryDirectory() as directory:
            write(name, Path(directory))
            read = {"format": name, "paths": [directory], "options": options}
            speeds = [(speed(ROOT, read), speed(older, read)) for _ in range(ROUNDS)]
        ours, theirs = (statistics.median(each) for each in zip(*speeds, strict=True))
        ratios = sorted(one / other for one, other in speeds)
        print(
            f"{name:8} {ours:12,.0f} rows per CPU second now, {theirs:12,.0f} before: "
            f"{ours / theirs:.3f} (rounds {ratios[0]:.3f} to {ratios[-1]:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    exit_on_signals()
    main()
