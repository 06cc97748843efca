"""Compares rows per second on one machine with hand-written programs for the same work.

    images   8,000 JPEGs of 400 x 300 pixels: decode, resize to 224 x 224, a small convolutional
             network, its result and the path to Parquet
    rows     20 million rows of Parquet: a NumPy function over two columns, a filter, Parquet
    small    1,000 lines of text in one file: a Python function, Parquet; mostly the start of Ray
    texts    6,000 texts of 5 to 40 words: embeddings with MiniLM on the CPU, Parquet

The peers are pipelines of Ray Data; for images also a loop over a DataLoader of PyTorch and a
program with Daft, and for texts the `encode` of sentence-transformers. Each run is a separate
process. Our runs and those of the peers alternate over the same files, with the same number of
CPUs. Whole times from start to end are compared with peers that use Ray. For the others, the time
of a run over FEW rows is subtracted on both sides; the share of the CPUs that were busy is also of
the rest. A program that only starts Ray and runs an empty task shows how long Ray itself takes. The
last lines are the ratios of the medians in rows per second, ours to the peer's.
`make throughput` runs this; `throughput.py images` runs one case.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import yaml
from PIL import Image
from rounds import ROUNDS, sized
from skimage import data as photos
from stop_signals import exit_on_signals
from texts import BATCH, MODEL, TEXTS, write_texts

from support.documents.minimal import document

HERE = Path(__file__).parent
NOISE = 0.1
"""How far a ratio may fall below its limit by chance alone, on a machine with two cores."""
IMAGES, SHAPE = sized(8000), (300, 400)
FILES, ROW_GROUP = 20, 250_000
ROWS = sized(20_000_000)
SMALL = 1000
FEW = 64
START_SECONDS = 2.0
"""How much longer a run over few rows may take than Ray's own start, an empty task and its end."""
BUSY = 0.9
"""The minimum share of the CPUs that is busy after the start, for images and texts."""


@dataclass(frozen=True)
class Case:
    name: str
    rows: int
    """Number of input rows."""
    written: int | None
    """Number of output rows; None if it is not known beforehand."""


def images(directory: Path, count: int = IMAGES) -> Case:
    """Write crops of real photographs as JPEG files."""
    generator = np.random.default_rng(0)
    sources = [photos.astronaut(), photos.coffee(), photos.chelsea(), photos.rocket()]
    height, width = SHAPE
    for number in range(count):
        source = sources[number % len(sources)]
        top = generator.integers(0, source.shape[0] - height + 1)
        left = generator.integers(0, source.shape[1] - width + 1)
        cut = Image.fromarray(source[top : top + height, left : left + width])
        cut.save(directory / f"{number:05d}.jpg", quality=90)
    return Case("images", count, count)


def rows(directory: Path, count: int = ROWS) -> Case:
    """Write Parquet files of numbers and short texts."""
    generator = np.random.default_rng(0)
    words = np.array([f"word {number}" for number in range(1000)])
    for number in range(FILES):
        size = count // FILES
        table = pa.table(
            {
                "id": np.arange(number * size, (number + 1) * size),
                "x": generator.random(size, dtype=np.float32),
                "y": generator.random(size, dtype=np.float32),
                "text": words[generator.integers(0, len(words), size)],
            }
        )
        pq.write_table(table, directory / f"{number:02d}.parquet", row_group_size=ROW_GROUP)
    return Case("rows", count // FILES * FILES, None)


def small(directory: Path) -> Case:
    """Write a file of short texts."""
    lines = [f"line {number} of a small file" for number in range(SMALL)]
    (directory / "lines.txt").write_text("\n".join(lines) + "\n")
    return Case("small", SMALL, SMALL)


def texts(directory: Path, count: int = TEXTS) -> Case:
    """Write texts of mixed length."""
    write_texts(directory, count)
    return Case("texts", count, count)


@dataclass(frozen=True)
class Run:
    """How long a run took, and how many seconds all CPUs of the machine were busy meanwhile."""

    seconds: float
    cpu_seconds: float


CASES = {"images": images, "rows": rows, "small": small, "texts": texts}
LIMITS = {
    "images": {"images": 1.5, "images_loader": 0.9, "images_daft": 1.0},
    "rows": {"rows": 1.05},
    "small": {"small": 1.0},
    "texts": {"texts": 0.95},
}
"""For each peer of a case, the minimum ratio of our rate to the peer's rate."""
WITHOUT_RAY = {"images_loader": images, "images_daft": images, "texts": texts}
"""The peers that do not start Ray, and how to write their input."""


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
                "options": {"size": [224, 224], "includePaths": True},
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
                {"name": "distance", "python": {"callable": "bench_steps:distance"}},
                {"name": "near", "filter": "distance < 0.5"},
            ],
            write={"format": "parquet", "path": str(output)},
        ),
        "small": document(
            "small",
            read={"format": "text", "paths": [str(source)]},
            steps=[{"name": "lengths", "python": {"callable": "bench_steps:lengths"}}],
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


def peer(name: str, source: Path, output: Path) -> list[str]:
    program = ["peer_images_daft.py"] if name == "images_daft" else ["peer_throughput.py", name]
    file, *arguments = [*program, str(source), str(output), str(os.cpu_count())]
    return [sys.executable, str(HERE / file), *arguments]


def measure(case: Case, source: Path, work: Path) -> dict[str, float]:
    """Return the ratio of our median rate to the rate of each peer, in rows per second."""
    peers, few = LIMITS[case.name], work / "few"
    for write in {WITHOUT_RAY[file] for file in peers if file in WITHOUT_RAY}:
        few.mkdir()
        write(few, FEW)
    full, start = defaultdict[str, list[Run]](list), defaultdict[str, list[Run]](list)
    for number in range(ROUNDS):
        for who in ("ours", *peers):
            output = work / f"{who}-{number}"
            full[who].append(timed(case.name, who, source, output, work))
            written = pads.dataset(output).count_rows()
            assert case.written in (written, None), written
            print(f"{case.name} {number + 1}: {who} {full[who][-1].seconds:.1f} s", flush=True)
            if few.exists() and (who == "ours" or who in WITHOUT_RAY):
                start[who].append(timed(case.name, who, few, work / f"few-{who}-{number}", work))
        if case.name == "small":
            start["nothing"].append(timed(case.name, "nothing", source, work / "ray", work))
    figures = {file: ratio(case, file, full, start) for file in peers}
    if case.name == "small":
        return figures | {"start": start_ratio(full["ours"], start["nothing"])}
    if few.exists():
        return figures | {f"busy {case.name}": busy(full["ours"], start["ours"])}
    return figures


def timed(name: str, who: str, source: Path, output: Path, work: Path) -> Run:
    """Run one side and return how long it took."""
    began, cpu = time.monotonic(), cpu_seconds()
    run(ours(name, source, output, work) if who == "ours" else peer(who, source, output))
    return Run(time.monotonic() - began, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Return the seconds that the CPUs of this machine have been busy since it started."""
    times = psutil.cpu_times()
    idle: float = times.idle + getattr(times, "iowait", 0.0)
    return sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0) - idle


def median(runs: list[Run]) -> Run:
    return Run(
        statistics.median(run.seconds for run in runs),
        statistics.median(run.cpu_seconds for run in runs),
    )


def ratio(
    case: Case, peer: str, runs: Mapping[str, list[Run]], start: Mapping[str, list[Run]]
) -> float:
    """Return and print the ratio of our median rate to a peer's."""
    sides = ("ours", peer)
    ours_, peer_ = (median(runs[who]).seconds for who in sides)
    if peer in WITHOUT_RAY:
        ours_, peer_ = (
            took - median(start[who]).seconds
            for took, who in zip((ours_, peer_), sides, strict=True)
        )
    print(f"{case.name} {peer} ratio={peer_ / ours_:.3f} "
          f"ours={case.rows / ours_:.0f} rows/s peer={case.rows / peer_:.0f} rows/s")  # fmt: skip
    return peer_ / ours_


def busy(runs: list[Run], start: list[Run]) -> float:
    """Return the share of the CPUs that was busy after the start."""
    all_, few = median(runs), median(start)
    share = (all_.cpu_seconds - few.cpu_seconds) / (all_.seconds - few.seconds)
    return share / (os.cpu_count() or 1)


def start_ratio(small: list[Run], ray: list[Run]) -> float:
    """Return the permitted duration of a run over few rows relative to its duration."""
    ours_, ray_ = median(small).seconds, median(ray).seconds
    print(f"start ours={ours_:.1f} s ray={ray_:.1f} s")
    return (ray_ + START_SECONDS) / ours_


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
            ratios |= measure(CASES[name](source), source, work)
    limits = {file: limit for peers in LIMITS.values() for file, limit in peers.items()}
    limits |= {"start": 1.0, "busy images": BUSY, "busy texts": BUSY}
    for file, ratio_ in ratios.items():
        print(f"throughput {file} ratio={ratio_:.3f} limit={limits[file]}")
    if slow := [file for file, ratio_ in ratios.items() if ratio_ < limits[file] - NOISE]:
        raise SystemExit(f"below the limit: {', '.join(slow)}")


if __name__ == "__main__":
    exit_on_signals()
    main()
