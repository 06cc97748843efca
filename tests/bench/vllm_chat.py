"""Compares the seconds of short chats in the runtime `vllm` with those of `LLM.chat` of vLLM.

    python tests/bench/vllm_chat.py MODEL [ROWS] [BATCHES]

MODEL is a folder, ROWS are 2000 by default, and BATCHES is `maxConcurrentBatches`. Each side loads
the model in a process of its own, without Ray, and computes the rows after a few others. It fails
if the texts differ. Needs vLLM: on a machine without GPUs, its build for CPUs.
"""

from __future__ import annotations

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


def product(model: str, batches: int) -> Callable[[list[str]], list[str]]:
    """Return what computes texts with the step of a job, as in one actor."""
    from batchinference.pipeline.execution.concurrent_batches import ConcurrentBatches
    from batchinference.pipeline.runtimes.device import Device
    from batchinference.pipeline.steps import load_step
    from batchinference.plan.stages import stages_of
    from batchinference.spec.steps import Step
    from support.documents.vllm_models import vllm_step

    sampling = {"max_tokens": MOST_TOKENS, "temperature": 0}
    fields: dict[str, Any] = {"sampling": sampling, "engine": ENGINE}
    step = Step.model_validate(vllm_step(source=model, maxConcurrentBatches=batches, **fields))
    (stage,) = stages_of([step])
    load_step(step, Device())  # as an actor does: threads that load at once get an engine each

    def make() -> Any:
        transform = load_step(step, Device())
        return lambda batch: iter([transform(batch)])

    run = ConcurrentBatches(stage, make, Event())
    return lambda texts: [
        answer for made in run(pa.table({"text": texts})) for answer in made["answer"].to_pylist()
    ]


def alone(model: str, _: int) -> Callable[[list[str]], list[str]]:
    """Return what computes texts with vLLM's own class for batches."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, **ENGINE)
    parameters = SamplingParams(max_tokens=MOST_TOKENS, temperature=0)

    def run(texts: list[str]) -> list[str]:
        chats = [[{"role": "user", "content": text}] for text in texts]
        return [made.outputs[0].text for made in llm.chat(chats, parameters, use_tqdm=False)]

    return run


SIDES = {"batchinference": product, "LLM.chat": alone}


def main(model: str, rows: int = 2000, batches: int = 16, side: str = "") -> None:
    if not side:
        commands = [[sys.executable, __file__, model, str(rows), str(batches), s] for s in SIDES]
        outputs = [subprocess.check_output(one, text=True) for one in commands]
        # vLLM prints more when it ends
        lines = [line for text in outputs for line in text.splitlines() if "checksum" in line]
        print(*lines, sep="\n")
        if len({line.rpartition(" ")[2] for line in lines}) > 1:
            sys.exit("the texts differ")
        return
    began = time.perf_counter()
    run = SIDES[side](model, batches)
    loaded = time.perf_counter()
    run([f"warm up {number}" for number in range(FEW)])
    ready = time.perf_counter()
    answers = run([f"question number {number}" for number in range(rows)])
    seconds = time.perf_counter() - ready
    print(
        f"{side}: engine in {loaded - began:.1f} s, {len(answers)} rows in {seconds:.2f} s, "
        f"{rows / seconds:.0f} rows/s, checksum {hash_of(answers)}",
        flush=True,
    )


def hash_of(answers: list[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(answers).encode()).hexdigest()[:12]


if __name__ == "__main__":
    model, *rest = sys.argv[1:]
    main(model, *map(int, rest[:2]), *rest[2:])  # type: ignore[arg-type]
