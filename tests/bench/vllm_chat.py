"""Compares the seconds of short chats in the runtime `vllm` with those of `LLM.chat` of vLLM.

    python tests/bench/vllm_chat.py MODEL [ROWS] [ROUNDS]

MODEL is a folder, ROWS are 2000 by default, and ROUNDS 7. Each side loads the model in a process of
its own, without Ray. They take turns to compute a round, each with other rows, and the medians
count. On a busy machine the processor time, without that of the engine's process, says more. It
fails if the texts differ. Needs vLLM: on a machine without GPUs, its build for CPUs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import pyarrow as pa

MOST_TOKENS = 12
FEW = 64
ENGINE = {"max_model_len": 256, "enforce_eager": True}


def product(model: str) -> Callable[[list[str]], list[str]]:
    """Return what computes texts with the step of a job, as in one actor."""
    from batchinference.pipeline.execution.concurrent_batches import ConcurrentBatches
    from batchinference.pipeline.runtimes.device import Device
    from batchinference.pipeline.steps import load_step
    from batchinference.plan.stages import stages_of
    from batchinference.spec.steps import Step
    from support.documents.vllm_models import vllm_step

    sampling = {"max_tokens": MOST_TOKENS, "temperature": 0}
    fields: dict[str, Any] = {"sampling": sampling, "engine": ENGINE}
    step = Step.model_validate(vllm_step(source=model, **fields))
    (stage,) = stages_of([step])

    def make() -> Any:
        transform = load_step(step, Device())
        return lambda batch: iter([transform(batch)])

    run = ConcurrentBatches(stage, make, Event())
    return lambda texts: [
        answer for made in run(pa.table({"text": texts})) for answer in made["answer"].to_pylist()
    ]


def alone(model: str) -> Callable[[list[str]], list[str]]:
    """Return what computes texts with vLLM's own class for batches."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, **ENGINE)
    parameters = SamplingParams(max_tokens=MOST_TOKENS, temperature=0)

    def run(texts: list[str]) -> list[str]:
        chats = [[{"role": "user", "content": text}] for text in texts]
        return [made.outputs[0].text for made in llm.chat(chats, parameters, use_tqdm=False)]

    return run


SIDES = {"batchinference": product, "LLM.chat": alone}


class Side:
    """A process that computes rounds of rows."""

    def __init__(self, name: str, model: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process: Any = subprocess.Popen(
            [sys.executable, __file__, model, "0", "0", name], text=True, **pipes
        )
        self.start = self.seconds_of(0, FEW)[0]

    def seconds_of(self, first: int, rows: int) -> tuple[float, float, str]:
        """Return the seconds of a round, its processor time and the hash of its texts."""
        print(first, rows, file=self._process.stdin, flush=True)
        for line in self._process.stdout:  # vLLM prints, too
            if line.startswith("round "):
                _, seconds, processor, texts = line.split()
                return float(seconds), float(processor), texts
        sys.exit("a side has ended")


def main(model: str, rows: int = 2000, rounds: int = 7) -> None:
    sides = {name: Side(name, model) for name in SIDES}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    processor: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(rounds):
        done = {name: side.seconds_of((number + 1) * rows, rows) for name, side in sides.items()}
        if len({texts for _, _, texts in done.values()}) > 1:
            sys.exit("the texts differ")
        for name in SIDES:
            seconds[name].append(done[name][0])
            processor[name].append(done[name][1])
    median = {name: statistics.median(each) for name, each in seconds.items()}
    for name, side in sides.items():
        each = " ".join(f"{one:.2f}" for one in seconds[name])
        rate, used = rows / median[name], statistics.median(processor[name])
        print(f"{name}: start {side.start:.1f} s, {rate:.0f} rows/s ({each} s), CPU {used:.2f} s")
    product_rows, other = (1 / median[name] for name in SIDES)
    print(f"rows/s: {product_rows / other:.2f} of LLM.chat")


def compute_rounds(name: str, model: str) -> None:
    """Compute the rows of each line of the standard input. The first round includes the start."""
    began, run = time.perf_counter(), SIDES[name](model)
    for number, line in enumerate(sys.stdin):
        first, rows = map(int, line.split())
        began, used = began if number == 0 else time.perf_counter(), time.process_time()
        answers = run([f"question number {number}" for number in range(first, first + rows)])
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        print("round", seconds, processor, hash_of(answers), flush=True)


def hash_of(answers: list[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(answers).encode()).hexdigest()[:12]


if __name__ == "__main__":
    model, *rest = sys.argv[1:]
    if len(rest) > 2:
        compute_rounds(rest[2], model)
    else:
        main(model, *map(int, rest))
