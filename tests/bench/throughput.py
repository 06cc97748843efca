"""Compares rows per second on one machine with hand-written programs for the same work.

    images   8,000 JPEGs of 400 x 300 pixels: decode, resize to 224 x 224, a small convolutional
             network, its result and the path to Parquet
    rows     20 million rows of Parquet: a NumPy function over two columns, a filter, Parquet
    small    1,000 lines of text in one file: a Python function, Parquet; mostly the start of Ray
    texts    6,000 texts of 5 to 40 words: embeddings with MiniLM on the CPU, Parquet

The peer is a Ray Data pipeline; for texts it is the `encode` of sentence-transformers. Each run is
a separate process that starts and stops Ray. Our runs and the peer's alternate over the same files,
with the same number of CPUs. The whole time from start to end is compared. The last lines are the ratios of the medians in rows per second, ours to the
peer's. `make throughput` runs this; `throughput.py images` runs one case.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import yaml
from PIL import Image
from rounds import ROUNDS
from skimage import data as photos
from texts import BATCH, MODEL, TEXTS, write_texts

from support.documents.minimal import document

HERE = Path(__file__).parent
NOISE = 0.1
"""How far a ratio may fall below its limit by chance alone, on a machine with two cores."""
IMAGES, SHAPE = 8000, (300, 400)
ROWS, FILES, ROW_GROUP = 20_000_000, 20, 250_000
SMALL = 1000


@dataclass(frozen=True)
class Case:
    name: str
    rows: int
    """Number of input rows."""
    written: int | None
    """Number of output rows; None if it is not known beforehand."""


def images(directory: Path) -> Case:
    """Write crops of real photographs as JPEG files."""
    generator = np.random.default_rng(0)
    sources = [photos.astronaut(), photos.coffee(), photos.chelsea(), photos.rocket()]
    height, width = SHAPE
    for number in range(IMAGES):
        source = sources[number % len(sources)]
        top = generator.integers(0, source.shape[0] - height + 1)
        left = generator.integers(0, source.shape[1] - width + 1)
        cut = Image.fromarray(source[top : top + height, left : left + width])
        cut.save(directory / f"{number:05d}.jpg", quality=90)
    return Case("images", IMAGES, IMAGES)


def rows(directory: Path) -> Case:
    """Write Parquet files of numbers and short texts."""
    generator = np.random.default_rng(0)
    words = np.array([f"word {number}" for number in range(1000)])
    for number in range(FILES):
        size = ROWS // FILES
        table = pa.table(
            {
                "id": np.arange(number * size, (number + 1) * size),
                "x": generator.random(size, dtype=np.float32),
                "y": generator.random(size, dtype=np.float32),
                "text": words[generator.integers(0, len(words), size)],
            }
        )
        pq.write_table(table, directory / f"{number:02d}.parquet", row_group_size=ROW_GROUP)
    return Case("rows", ROWS, None)


def small(directory: Path) -> Case:
    """Write a file of short texts."""
    lines = [f"line {number} of a small file" for number in range(SMALL)]
    (directory / "lines.txt").write_text("\n".join(lines) + "\n")
    return Case("small", SMALL, SMALL)


def texts(directory: Path) -> Case:
    """Write texts of mixed length."""
    write_texts(directory)
    return Case("texts", TEXTS, TEXTS)


CASES = {"images": images, "rows": rows, "small": small, "texts": texts}
LIMITS = {"images": 1.5, "rows": 1.05, "small": 1.0, "texts": 0.95}
"""The minimum ratio of our rate to the peer's rate."""


def jobs(source: Path, output: Path) -> dict[str, dict[str, object]]:
    """Return the job of each case."""
    network = {"runtime": "torch", "factory": "models:network", "inputs": {"image": "image"}}
    embedder = {"runtime": "sentenceTransformers", "source": MODEL, "inputs": {"text": "text"}}
    return {
        "images": document(
            "images",
            read={
                "format": "images",
                "paths": [str(source)],
                "options": {"size": [224, 224], "include_paths": True},
            },
            steps=[
                {"name": "network", "model": {**network, "output": "scores"}, "batchSize": 64},
                {"name": "slim", "dropColumns": ["image"]},
            ],
            write={"format": "parquet", "path": str(output)},
        ),
        "rows": document(
            "rows",
            read={"format": "parquet", "paths": [str(source)]},
            steps=[
                {"name": "distance", "python": {"callable": "functions:distance"}},
                {"name": "near", "filter": "distance < 0.5"},
            ],
            write={"format": "parquet", "path": str(output)},
        ),
        "small": document(
            "small",
            read={"format": "text", "paths": [str(source)]},
            steps=[{"name": "lengths", "python": {"callable": "functions:lengths"}}],
            write={"format": "parquet", "path": str(output)},
        ),
        "texts": document(
            "texts",
            read={"format": "text", "paths": [str(source)]},
            steps=[
                {
                    "name": "embed",
                    "model": {**embedder, "output": "embedding", "normalize": True},
                    "batchSize": BATCH,
                }
            ],
            write={"format": "parquet", "path": str(output)},
        ),
    }


def ours(name: str, source: Path, output: Path, work: Path) -> list[str]:
    file = work / "job.yaml"
    file.write_text(yaml.safe_dump(jobs(source, output)[name]))
    return [str(Path(sys.executable).with_name("batchinference")), "run", str(file)]


def peer(name: str, source: Path, output: Path, work: Path) -> list[str]:
    cpus = str(os.cpu_count())
    return [sys.executable, str(HERE / f"peer_{name}.py"), str(source), str(output), cpus]


def measure(case: Case, source: Path, work: Path) -> float:
    """Return the ratio of our median rate to the peer's, in rows per second."""
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    written = {}
    for number in range(ROUNDS):
        for who, command in {"ours": ours, "peer": peer}.items():
            output = work / f"{who}-{number}"
            began = time.monotonic()
            run(command(case.name, source, output, work))
            seconds[who].append(time.monotonic() - began)
            written[who] = pads.dataset(output).count_rows()
            print(f"{case.name} {number + 1}: {who} {seconds[who][-1]:.1f} s", flush=True)
    assert written["ours"] == written["peer"] == (case.written or written["peer"]), written
    ours_, peer_ = (statistics.median(seconds[who]) for who in ("ours", "peer"))
    print(f"{case.name} ratio={peer_ / ours_:.3f} "
          f"ours={case.rows / ours_:.0f} rows/s peer={case.rows / peer_:.0f} rows/s")  # fmt: skip
    return peer_ / ours_


def run(command: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(f"{command} ended with {ended.returncode}: {ended.stderr[-3000:]}")


def main() -> None:
    ratios = {}
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as directory:
            source, work = Path(directory) / "in", Path(directory) / "work"
            source.mkdir()
            work.mkdir()
            ratios[name] = measure(CASES[name](source), source, work)
    for name, ratio in ratios.items():
        print(f"throughput {name} ratio={ratio:.3f}")
    if slow := [name for name, ratio in ratios.items() if ratio < LIMITS[name] - NOISE]:
        raise SystemExit(f"slower than the peer: {', '.join(slow)}")


if __name__ == "__main__":
    main()
