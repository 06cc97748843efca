"""Measures what a cascade saves, and the precision of the rows that it skips.

The rows are handwritten digits with noise. A linear model is the cheap one, and the vote of 100
support vector machines the expensive one. One job computes all rows with both. Another job has a
cascade, which learns from 1,000 rows. Printed are the seconds of the expensive step in all its
processes, the fraction of rows that the cascade skips, how often the models agree on these rows,
and how many answers of each job are the true digit.

    python tests/bench/cascade.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import yaml
from cascade_step import TRAINED, digits
from rounds import ROUNDS, sized
from stop_signals import exit_on_signals

from support.documents.minimal import document

HERE = Path(__file__).parent
ROWS, NOISE = sized(20_000), 2.0
PRECISION = 0.98
CASCADE = {"score": "score", "agree": "cheap == expensive", "precision": PRECISION}


def write_rows(file: Path) -> np.ndarray:
    """Write digits with noise, and return the true ones by the number of the row."""
    pixels, labels = (values[TRAINED:] for values in digits())
    generator = np.random.default_rng(0)
    chosen = generator.integers(0, len(labels), ROWS)
    noisy = pixels[chosen] + generator.normal(0, NOISE, (ROWS, pixels.shape[1]))
    columns = {"n": np.arange(ROWS), "pixels": list(noisy.astype(np.float32))}
    pq.write_table(pa.table(columns), file)
    return labels[chosen]


def run(directory: Path, name: str, **fields: Any) -> tuple[dict[str, Any], pa.Table]:
    """Run a job. Return its report and its rows."""
    cheap, expensive = ({"callable": f"cascade_step:{kind}"} for kind in ("Cheap", "Expensive"))
    steps = [
        {"name": "cheap", "python": cheap},
        {"name": "expensive", "python": expensive, "batchSize": 32, **fields},
        {"name": "slim", "dropColumns": ["pixels"]},
    ]
    read = {"format": "parquet", "paths": [str(directory / "rows.parquet")]}
    output = directory / name
    job = document(name, read=read, steps=steps, write={"format": "parquet", "path": str(output)})
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "batchinference", "run", str(directory / f"{name}.yaml")]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "PYTHONPATH": path})
    report = json.loads((output / "_batchinference/report.json").read_text())
    return report, pads.dataset(output).to_table().sort_by("n")


def measured(directory: Path, labels: np.ndarray) -> float:
    """Print what a round has measured, and return the ratio of the seconds."""
    seconds = {}
    for name, fields in (("all", {}), ("cascade", {"cascade": CASCADE})):
        report, rows = run(directory, name, **fields)
        seconds[name] = report["steps"]["expensive"]["seconds"]
        cheap, expensive = (rows.column(kind).to_pylist() for kind in ("cheap", "expensive"))
        if name == "all":
            best = expensive
        answers = [c if e is None else e for c, e in zip(cheap, expensive, strict=True)]
        right = np.mean(np.array(answers) == labels)
        print(f"{name}: {seconds[name]:.1f} s, {right:.2%} of the answers are right")
    skipped = [row for row, answer in enumerate(expensive) if answer is None]
    agreed = sum(cheap[row] == best[row] for row in skipped)
    print(f"skipped {len(skipped) / ROWS:.1%}, precision {agreed / max(1, len(skipped)):.2%}")
    print(report["notes"][0])
    return seconds["all"] / seconds["cascade"]


def main() -> None:
    exit_on_signals()
    ratios = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory:
            labels = write_rows(Path(directory) / "rows.parquet")
            ratios.append(measured(Path(directory), labels))
    print(f"ratio of the seconds of the expensive step: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
