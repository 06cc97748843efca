"""Compares the seconds until a job with vLLM has its first row with those of `LLM.chat` of vLLM.

    python tests/bench/vllm_start.py MODEL [ROUNDS]

MODEL is a folder, and ROUNDS are 3 by default. Both sides take turns. Each begins with the start of
a process; the job, which runs on Ray, ends with its first committed rows. Needs vLLM: on a machine
without GPUs, its build for CPUs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from support.documents.vllm_models import vllm
from support.jobs.command import Command
from support.jobs.gated import committed_rows
from support.jobs.on_ray import job_document, write_lines

ENGINE = {"max_model_len": 256, "enforce_eager": True}
ROWS = [f"question number {number}" for number in range(8)]
ALONE = f"""
import sys, time
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(sys.argv[1], **{ENGINE})
    chats = [[{{"role": "user", "content": text}}] for text in {ROWS}]
    llm.chat(chats, SamplingParams(max_tokens=12, temperature=0), use_tqdm=False)
    print("first row", time.time(), flush=True)
"""


def alone(model: str, directory: Path) -> float:
    """Return the seconds until vLLM's own class for batches has computed the rows."""
    program = directory / "alone.py"
    program.write_text(ALONE)
    began = time.time()
    output = subprocess.run(
        [sys.executable, program, model], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    (line,) = (line for line in output.splitlines() if line.startswith("first row"))
    return float(line.rpartition(" ")[2]) - began


def job(model: str, directory: Path) -> float:
    """Return the seconds until a job has committed rows."""
    sampling = {"max_tokens": 12, "temperature": 0}
    asked = vllm(source=model, engine=ENGINE, sampling=sampling)
    steps = [{"name": "ask", "model": asked, "resources": {"gpu": 0}}]
    source = write_lines(directory / "in", {"rows.txt": ROWS})
    document = job_document("start", source, directory / "out", steps=steps)
    (directory / "job.yaml").write_text(yaml.safe_dump(document))
    program = ["-m", "batchinference", "run", "job.yaml"]
    began = time.time()
    with Command(program, directory, program=Path(sys.executable)).start() as process:
        while not committed_rows(document):
            if process.poll() is not None:
                sys.exit("the job has ended without rows")
            time.sleep(0.05)
        seconds = time.time() - began
        process.communicate()
    return seconds


SIDES: dict[str, Callable[[str, Path], float]] = {"batchinference": job, "LLM.chat": alone}


def main(model: str, rounds: int = 3) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(rounds):
        for name, measure in SIDES.items():
            with tempfile.TemporaryDirectory() as directory:
                seconds[name].append(measure(model, Path(directory)))
    for name, each in seconds.items():
        print(f"{name}: {statistics.median(each):.1f} s", *(f"{one:.1f}" for one in each))
    product, other = (statistics.median(each) for each in seconds.values())
    print(f"start to first row: {product / other:.2f} of LLM.chat")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
