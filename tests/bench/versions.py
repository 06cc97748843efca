"""Compares cases of throughput.py between this version and another one, on one machine.

    PYTHONPATH=tests python tests/bench/versions.py ../other-checkout images rows small texts

Both versions run with the packages of this environment, alternately, over the same files. The last
line of a case is the ratio of the median durations: above 1, this version is faster.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import ROUNDS
from stop_signals import exit_on_signals
from throughput import CASES

WRITE_JOB = (
    "import sys, yaml, throughput; from pathlib import Path; "
    "print(yaml.safe_dump(throughput.jobs(Path(sys.argv[2]), Path(sys.argv[3]))[sys.argv[1]]))"
)


def python(tree: Path, *arguments: str) -> str:
    """Run Python with the modules of a checkout, and return what it prints."""
    folders = [tree / "tests/bench", tree / "tests", tree / "jobs/src"]
    path = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if ended.returncode:
        raise SystemExit(f"{tree}: {ended.stderr[-3000:]}")
    return ended.stdout


def duration(tree: Path, case: str, source: Path, work: Path) -> float:
    """Return the seconds that a checkout takes for a case."""
    work.mkdir()
    file = work / "job.yaml"
    file.write_text(python(tree, "-c", WRITE_JOB, case, str(source), str(work / "out")))
    began = time.monotonic()
    python(tree, "-m", "batchinference", "run", str(file))
    return time.monotonic() - began


def compare(case: str, trees: dict[str, Path], directory: Path) -> None:
    """Run all rounds of a case, and print each duration and the ratio of the medians."""
    (source := directory / "in").mkdir()
    CASES[case](source)
    seconds: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(ROUNDS):
        for name, tree in trees.items():
            took = duration(tree, case, source, directory / f"{name}-{number}")
            seconds[name].append(took)
            print(f"{case} {number + 1}: {name} {took:.1f} s", flush=True)
    other, this = (statistics.median(seconds[name]) for name in ("other", "this"))
    print(f"versions {case} ratio={other / this:.3f} this={this:.1f} s other={other:.1f} s")


def main() -> None:
    trees = {"other": Path(sys.argv[1]).resolve(), "this": Path(__file__).resolve().parents[2]}
    for case in sys.argv[2:] or CASES:
        with tempfile.TemporaryDirectory() as directory:
            compare(case, trees, Path(directory))


if __name__ == "__main__":
    exit_on_signals()
    main()
