"""Measures what parts of the product cost: the same job runs with each part switched off.

    row ids         each row carries the id of its input row, and commits hold ranges of them
    error handling  the error of a batch is caught, and the failing row is isolated
    commits         manifests, and the checks of the lease
    progress        the driver counts the committed rows while tasks run
    bucketing       texts are computed longest first, so that batches are padded little

The cases are from throughput.py: `rows` with 40 million rows, and `texts` with 3,000 texts for
bucketing. Parts are replaced by ablated.py; they are no options of the product. The seconds are
those of the report from the first task to the complete output, without the start of Ray. All
variants alternate, and the medians are compared: a cost of 3 % means that the job takes 3 % longer
with the part than without it. `make ablation` runs this; `ablation.py texts` runs one case.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

import pyarrow.dataset as pads
import yaml
from ablated import PART
from rounds import ROUNDS, sized
from stop_signals import exit_on_signals
from throughput import HERE, Case, jobs, rows, texts

from batchinference.spec.report import JobState, Report

PARTS = {"rows": ("row ids", "error handling", "commits", "progress"), "texts": ("bucketing",)}
"""The parts that are switched off in each case."""
INPUTS = {
    "rows": partial(rows, count=sized(40_000_000)),
    "texts": partial(texts, count=sized(3000)),
}


def measure(case: Case, source: Path, work: Path) -> dict[str, float]:
    """Return the median seconds of the job without each part."""
    seconds = defaultdict[str, list[float]](list)
    written = set()
    for number in range(ROUNDS):
        for part in ("nothing", *PARTS[case.name]):
            output = work / f"{part}-{number}".replace(" ", "-")
            seconds[part].append(run(case.name, part, source, output))
            written.add(pads.dataset(output).count_rows())
            print(f"{case.name} {number + 1}: without {part} {seconds[part][-1]:.1f} s", flush=True)
    assert len(written) == 1, f"the variants wrote different numbers of rows: {written}"
    return {part: statistics.median(found) for part, found in seconds.items()}


def run(name: str, part: str, source: Path, output: Path) -> float:
    """Run the job of a case without a part, and return the seconds of its work."""
    file = output.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(jobs(source, output)[name]))
    command = [sys.executable, str(HERE / "ablated.py"), "run", str(file)]
    path = os.pathsep.join([str(HERE), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, PART: part}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        raise SystemExit(f"{command} ended with {ended.returncode}: {ended.stderr[-3000:]}")
    report = Report.parse((output / "_batchinference" / "report.json").read_bytes())
    return report.seconds[JobState.RUNNING] + report.seconds[JobState.FINALIZING]


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as directory:
            source, work = Path(directory) / "in", Path(directory) / "work"
            source.mkdir()
            work.mkdir()
            seconds = measure(INPUTS[name](source), source, work)
        whole = seconds.pop("nothing")
        print(f"| {name}: switched off | seconds | cost |\n| --- | --- | --- |")
        print(f"| nothing | {whole:.1f} | |")
        for part, without in seconds.items():
            print(f"| {part} | {without:.1f} | {100 * (whole / without - 1):+.1f} % |")


if __name__ == "__main__":
    exit_on_signals()
    main()
