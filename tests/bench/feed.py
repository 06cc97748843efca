"""Compares how fast an actor pool is fed with programs that feed the same model.

The model costs nothing and runs in a pool of one actor with 0.1 CPU, so that only its feed is
measured: reading, decoding, the way of the rows into the actor, and writing one number per row.

    images   JPEGs of 400 x 300 pixels, decoded and resized to 224 x 224, in batches of 64
    texts    rows of Parquet with a short text, in batches of 1,024
    tokens   such texts, tokenized for an encoder, in batches of 1,024

The peers are a DataLoader of PyTorch with as many workers as CPUs, pipelines of Ray Data, a loop
over batches of PyArrow, and the tokenizer alone. Each run is a separate process. The sides
alternate. To leave out the start, the time of a run over a FRACTION of the rows is subtracted on
each side: the rate is that of the other rows, from the medians of all rounds. The share of the
start in a short run is large, so BENCH_SIZE below 0.5 gives rough figures only.

`make feed` runs this; `feed.py texts` runs one case, and `feed.py --profile texts` also shows where
the time goes. BENCH_ROUNDS and BENCH_SIZE set the number of rounds and the fraction of the rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import yaml
from feed_models import BATCHES, write_tiny_encoder
from feed_profile import profile
from rounds import ROUNDS, sized
from stop_signals import exit_on_signals
from texts import sample_texts
from throughput import HERE, images, run

from support.documents.minimal import Document, document

FRACTION = 0.1
FILES = 8
DIFFERENT = 2000
"""Images with other pixels. Further files are links to these."""
NOISE = 0.05
"""How far a ratio may fall below its goal by chance alone."""
POOL: Document = {"replicas": {"min": 1, "max": 1}, "resources": {"cpu": 0.1}}


def write_images(directory: Path, rows: int) -> None:
    """Write JPEG files, of which at most DIFFERENT have other pixels."""
    images(directory, min(rows, DIFFERENT))
    for number in range(DIFFERENT, rows):
        file = directory / f"{number % DIFFERENT:05d}.jpg"
        (directory / f"{number:05d}.jpg").hardlink_to(file)


def write_texts(directory: Path, rows: int) -> None:
    """Write Parquet files with a number and a short text in each row."""
    texts = np.array(sample_texts(10_000), dtype=object)
    for number in range(FILES):
        ids = np.arange(number, rows, FILES)
        table = pa.table({"id": ids, "text": texts[ids % len(texts)]})
        pq.write_table(table, directory / f"{number}.parquet", use_dictionary=False)


Goals = Mapping[str, float | None]


@dataclass(frozen=True)
class Case:
    """The work, its number of rows, and the lowest ratio of our rate to a peer's. None: no goal."""

    rows: int
    write: Callable[[Path, int], object]
    goals: Goals


CASES = {
    "images": Case(sized(16_000), write_images, {"loader": 0.95, "ray": 1.3}),
    "texts": Case(sized(32_000_000), write_texts, {"ray": 1.5, "loop": None}),
    "tokens": Case(sized(400_000), write_texts, {"tokenizer": 0.9}),
}


def job(case: str, source: Path, output: Path) -> Document:
    """Return the job of a case."""
    read: Document = {"format": "parquet", "paths": [str(source)]}
    code = {"name": "model", "batchSize": BATCHES[case], **POOL}
    if case == "images":
        read = {**read, "format": "images", "options": {"size": [224, 224]}}
        step = {**code, "python": {"callable": "feed_models:FirstPixels"}}
    elif case == "texts":
        step = {**code, "python": {"callable": "feed_models:Zeros"}}
    else:
        encoder = source.parent / "encoder"
        if not encoder.exists():
            write_tiny_encoder(encoder)
        model = {
            "runtime": "transformers",
            "task": "feature-extraction",
            "source": str(encoder),
            "inputs": {"text": "text"},
            "output": "number",
        }
        step = {**code, "model": model}
    keep = {"name": "keep", "selectColumns": ["number"]}
    write = {"format": "parquet", "path": str(output)}
    return document(case, read=read, steps=[step, keep], write=write)


def command(case: str, who: str, source: Path, output: Path) -> list[str]:
    """Return the command of a side: `ours`, or a peer."""
    if who != "ours":
        program = [sys.executable, str(HERE / "peer_feed.py"), case, who]
        return [*program, str(source), str(output), str(os.cpu_count())]
    file = output.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(job(case, source, output)))
    return [sys.executable, "-m", "batchinference", "run", str(file)]


@dataclass(frozen=True)
class Times:
    """The seconds of the runs of one side over all rows, and over a part of them."""

    all_rows: int
    part_rows: int
    of_all: list[float]
    of_part: list[float]

    @property
    def rate(self) -> float:
        """The rows per second, without the start. Ends the program if the run over all rows was not
        slower than that over a part."""
        seconds = statistics.median(self.of_all) - statistics.median(self.of_part)
        if seconds <= 0:
            raise SystemExit("BENCH_SIZE: too few rows for a rate. Use a larger size.")
        return (self.all_rows - self.part_rows) / seconds


def measure(name: str, work: Path, rounds: int) -> dict[str, Times]:
    """Run all sides of a case, and return their times."""
    case = CASES[name]
    sizes = {"all": case.rows, "part": max(1, round(case.rows * FRACTION))}
    for size, rows in sizes.items():
        (work / size).mkdir()
        case.write(work / size, rows)
    seconds = defaultdict[tuple[str, str], list[float]](list)
    sides = ("ours", *case.goals)
    for number in range(rounds):
        for who in sides:
            for size, rows in sizes.items():
                output = work / f"{who}-{size}-{number}"
                arguments = command(name, who, work / size, output)
                began = time.monotonic()
                run(arguments)
                seconds[who, size].append(time.monotonic() - began)
                assert pads.dataset(output).count_rows() == rows, output
                print(f"{name} {number + 1}: {who} {rows} rows {seconds[who, size][-1]:.1f} s",
                      flush=True)  # fmt: skip
    return {
        who: Times(sizes["all"], sizes["part"], seconds[who, "all"], seconds[who, "part"])
        for who in sides
    }


def table_of(name: str, times: Mapping[str, Times], goals: Goals) -> list[str]:
    """Return a line for each peer: both rates, their ratio, and the goal."""
    ours = times["ours"].rate
    return [
        f"feed {name:7} {peer:10} ours {ours:9.0f} peer {times[peer].rate:9.0f} rows/s  "
        f"ratio {ours / times[peer].rate:.2f}  {f'goal {goal}' if goal else 'no goal'}"
        for peer, goal in goals.items()
    ]


def missed(name: str, times: Mapping[str, Times], goals: Goals) -> list[str]:
    """Return the peers for which the goal is missed by more than NOISE."""
    ours = times["ours"].rate
    return [
        f"{name} {peer}"
        for peer, goal in goals.items()
        if goal and ours / times[peer].rate < goal * (1 - NOISE)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", choices=[*CASES], metavar="CASE")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    parser.add_argument("--only-profile", action="store_true", help="do not compare with peers")
    chosen = parser.parse_args(arguments)
    lines, behind = [], []
    for name in chosen.cases or CASES:
        with tempfile.TemporaryDirectory() as directory:
            work = Path(directory)
            if not chosen.only_profile:
                times = measure(name, work, ROUNDS)
                lines += table_of(name, times, CASES[name].goals)
                behind += missed(name, times, CASES[name].goals)
            if chosen.profile or chosen.only_profile:
                rows, source = CASES[name].rows, work / "all"
                if not source.exists():  # `measure` writes the same rows
                    source.mkdir()
                    CASES[name].write(source, rows)
                lines += profile(job(name, source, work / "profiled"), rows)
    print("\n".join(lines))
    if behind:
        raise SystemExit(f"below the goal: {', '.join(behind)}")


if __name__ == "__main__":
    exit_on_signals()
    main()
