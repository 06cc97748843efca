"""Measures rows/s of prompts whose answers have different lengths.

    python tests/bench/mixed_lengths.py endpoint
    python tests/bench/mixed_lengths.py vllm MODEL

`endpoint`: a server whose answers take a millisecond per token, for 64 requests at a time. Jobs
with `http` and pipelines of Ray Data with batches of 64 rows take turns. The time is that from the
first request to the last answer. `vllm`: the steps of an actor, with all rows in flight that the
engine takes, and with a batch at a time. MODEL is a folder. BENCH_ROUNDS and BENCH_SIZE set the
number of rounds and the fraction of the rows.

Answers have 1 to 500 tokens: `uniform`, or `mostly short`, of which one in twenty is long.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rounds import ROUNDS, sized

from support.documents.minimal import document

GOAL = 1.5
AT_ONCE = 64
TOKEN_SECONDS = 0.001
LONGEST = 500
SEQUENCES = 32
"""Rows that the engine on CPUs computes at once: as many as a batch has."""

ENGINE = {
    **{"max_model_len": 1024, "enforce_eager": True},
    "hf_overrides": {"max_position_embeddings": 1024},
}


def uniform(chance: random.Random) -> int:
    return chance.randint(1, LONGEST)


def mostly_short(chance: random.Random) -> int:
    return chance.randint(400, LONGEST) if chance.random() < 1 / 20 else chance.randint(1, 20)


MIXES = {"uniform": uniform, "mostly short": mostly_short}


def table(rows: int, tokens: Callable[[random.Random], int], seed: int) -> pa.Table:
    chance = random.Random(seed)
    numbers = [tokens(chance) for _ in range(rows)]
    texts = [f"{number} tokens for {seed} {row}" for row, number in enumerate(numbers)]
    return pa.table({"text": texts, "tokens": numbers})


class Clock:
    """The time from the first request to the last answer."""

    def __init__(self) -> None:
        self.first, self.last, self.answers = 0.0, 0.0, 0

    @property
    def rate(self) -> float:
        return self.answers / (self.last - self.first)


@contextmanager
def endpoint(clock: list[Clock]) -> Iterator[str]:
    """Serve chats, and note in the last clock when."""
    from aiohttp import web

    free = asyncio.Semaphore(AT_ONCE)

    async def answer(request: web.Request) -> web.Response:
        clock[-1].first = clock[-1].first or time.monotonic()
        tokens, _, _ = (await request.json())["messages"][-1]["content"].partition(" ")
        async with free:
            await asyncio.sleep(int(tokens) * TOKEN_SECONDS)
        clock[-1].last = time.monotonic()
        clock[-1].answers += 1
        return web.json_response({"choices": [{"message": {"content": "yes"}}]})

    async def serve() -> int:
        app = web.Application()
        app.router.add_post("/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = asyncio.run_coroutine_threadsafe(serve(), loop).result()
    yield f"http://127.0.0.1:{port}"
    loop.call_soon_threadsafe(loop.stop)


def job(source: Path, url: str) -> str:
    """Write the file of a job that asks the endpoint, and return its name."""
    model: dict[str, Any] = {
        **{"runtime": "http", "api": "chat", "name": "m", "url": url, "concurrency": AT_ONCE},
        **{"inputs": {"question": "text"}, "output": "answer"},
    }
    formats = {"format": "parquet"}
    written = document(
        read={**formats, "paths": [str(source)]},
        steps=[{"name": "ask", "model": model}],
        write={**formats, "path": f"{source}-{time.time_ns()}"},
    )
    file = Path(f"{source}.yaml")
    file.write_text(yaml.safe_dump(written))
    return str(file)


def measure_endpoint() -> None:
    from throughput import HERE, run

    for name, tokens in MIXES.items():
        rates: dict[str, list[float]] = defaultdict(list)
        clocks: list[Clock] = []
        with endpoint(clocks) as url, tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "rows")
            source.mkdir()
            rows = table(sized(4000), tokens, 0)
            pq.write_table(rows, source / "0.parquet", row_group_size=len(rows) // 64)
            own = [sys.executable, "-m", "batchinference", "run"]
            peer = [sys.executable, str(HERE / "peer_requests.py"), str(source), url]
            for _ in range(ROUNDS):
                for side, command in {
                    "batchinference": [*own, job(source, url)],
                    "Ray Data, a batch at a time": [*peer, "1"],
                    "Ray Data, 4 batches at a time": [*peer, "4"],
                }.items():
                    clocks.append(Clock())
                    run(command)
                    assert clocks[-1].answers == len(rows), (side, clocks[-1].answers)
                    rates[side].append(clocks[-1].rate)
        best = AT_ONCE / (TOKEN_SECONDS * statistics.mean(rows["tokens"].to_pylist()))
        print(f"endpoint, {name}: at most {best:.0f} rows/s")
        compared(rates)


def measure_vllm(model: str) -> None:
    fields: dict[str, Any] = {
        **{"source": model, "inputs": {"question": "text", "limit": "tokens"}},
        "sampling": {"max_tokens": "{limit}", "temperature": 0, "ignore_eos": True},
        "engine": {**ENGINE, "max_num_seqs": SEQUENCES},
    }
    actor = Actor(fields)
    actor.rows(table(SEQUENCES, mostly_short, 0))
    for name, tokens in MIXES.items():
        rates: dict[str, list[float]] = defaultdict(list)
        for seed in range(1, ROUNDS + 1):
            rows = table(sized(512), tokens, seed)
            for side, wanted in (("batchinference", 2 * SEQUENCES), ("a batch at a time", 1)):
                rates[side].append(len(rows) / actor.seconds(rows, wanted))
        print(f"vllm, {name}: {actor.waited:.1%} of the time, the engine had too few rows")
        compared(rates)


class Actor:
    """The step of an actor with the runtime `vllm`."""

    def __init__(self, fields: dict[str, Any]) -> None:
        from batchinference.pipeline.runtimes.device import Device
        from batchinference.pipeline.steps import load_step
        from batchinference.plan.stages import stages_of
        from batchinference.spec.steps import Step
        from support.documents.vllm_models import vllm_step

        step = Step.model_validate(vllm_step(gpu=0, **fields))
        (self._stage,) = stages_of([step])
        self._transform = load_step(step, Device())
        self.waited = 0.0

    def seconds(self, rows: pa.Table, wanted: int) -> float:
        """Return the seconds of rows, of which at most about `wanted` are in flight."""
        from batchinference.pipeline.rows_in_flight import IN_FLIGHT

        IN_FLIGHT.wanted = wanted
        samples, ended = list[int](), threading.Event()

        def sample() -> None:
            while not ended.wait(0.01):
                samples.append(IN_FLIGHT.rows)

        sampling = threading.Thread(target=sample)
        sampling.start()
        began = time.perf_counter()
        self.rows(rows)
        seconds = time.perf_counter() - began
        ended.set()
        sampling.join()
        if wanted > 1:
            until_last = samples[: len(samples) - 1 - samples[::-1].index(max(samples))]
            self.waited = sum(result < SEQUENCES for result in until_last) / max(1, len(until_last))
        return seconds

    def rows(self, rows: pa.Table) -> None:
        """Compute rows like an actor that gets them as a block."""
        from batchinference.pipeline.execution.block_codec import decode, encode
        from batchinference.pipeline.execution.concurrent_batches import ConcurrentBatches
        from batchinference.pipeline.row_batch import RowBatch, consecutive_ids
        from batchinference.pipeline.steps.transform import as_result

        def compute(batch: pa.Table) -> Iterator[pa.Table]:
            given = decode(batch)
            made = as_result(self._transform(given.table))
            yield encode(given.derived(made.table, made.parents, []))

        run_all = ConcurrentBatches(self._stage, compute, threading.Event())
        block = encode(RowBatch.read(rows, consecutive_ids(0, 0, len(rows))))
        made = pa.concat_tables(run_all(block))
        assert sorted(made["text"].to_pylist()) == sorted(rows["text"].to_pylist())


def compared(rates: dict[str, list[float]]) -> None:
    """Print the rates of each side, and the ratio of the first side to the others."""
    first, *_ = medians = {side: statistics.median(rate) for side, rate in rates.items()}
    for side, median in medians.items():
        each = " ".join(f"{rate:.1f}" for rate in rates[side])
        ratio = medians[first] / median
        print(f"  {side}: {median:.1f} rows/s ({each}), ratio={ratio:.2f} limit={GOAL}", flush=True)


MEASURES: dict[str, Callable[..., None]] = {"endpoint": measure_endpoint, "vllm": measure_vllm}

if __name__ == "__main__":
    name, *model = sys.argv[1:]
    MEASURES[name](*model)
