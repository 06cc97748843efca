"""Measures the rows per second of the runtime `http` at an endpoint of which some answers are slow.

    python tests/bench/http_requests.py [ROWS] [CONCURRENCY] [SLOW_SECONDS]

The server, in a process of its own, answers each 20th row after SLOW_SECONDS (1 by default), and
the others after FAST_SECONDS. The rows are computed as in an actor, without Ray. For comparison,
run it with the package of another tree first in PYTHONPATH. The limit is what the requests in
flight could answer if none of them ever waited.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from threading import Event

import pyarrow as pa
from aiohttp import web
from aiohttp.test_utils import TestServer

FAST_SECONDS, SLOW_SHARE = 0.02, 20


def serve(sends: Connection, slow_seconds: float) -> None:
    """Send the port of a server, and serve until the process ends."""

    async def answer(request: web.Request) -> web.Response:
        text = json.loads(await request.read())["messages"][0]["content"]
        await asyncio.sleep(FAST_SECONDS if int(text) % SLOW_SHARE else slow_seconds)
        return web.json_response({"choices": [{"message": {"content": text}}]})

    async def run() -> None:
        application = web.Application()
        application.router.add_post("/{path:.*}", answer)
        async with TestServer(application, host="127.0.0.1") as server:
            sends.send(server.port)
            await asyncio.Event().wait()

    asyncio.run(run())


def texts(port: int, rows: int, concurrency: int) -> Iterator[str]:
    """Yield the answers to rows. A block goes to the actor as a whole, or in batches."""
    from batchinference.pipeline.execution.block_codec import decode, encode
    from batchinference.pipeline.execution.concurrent_batches import concurrent_or_single
    from batchinference.pipeline.execution.dataset import BlockCalls
    from batchinference.pipeline.execution.segment import Segment
    from batchinference.pipeline.execution.step_runner import ErrorHandling
    from batchinference.pipeline.storage.location import Location
    from batchinference.plan.stages import stages_of
    from batchinference.spec.steps import Step
    from support.documents.http_models import chat
    from support.outputs.batches import good

    model = chat(url=f"http://127.0.0.1:{port}", concurrency=concurrency)
    (stage,) = stages_of([Step.model_validate({"name": "ask", "model": model})])
    segment = Segment.of([stage], ErrorHandling(tolerant=True, input=Location("/none")))
    run = concurrent_or_single(stage, lambda: BlockCalls("ask", segment, Event()), Event())
    block = encode(good(0, 0, pa.table({"text": [str(row) for row in range(rows)]})))
    size = rows if stage.concurrent_batches > 1 else stage.batch_size or rows
    for start in range(0, rows, size):
        for made in run(block.slice(start, size)):
            yield from decode(made).table["answer"].to_pylist()


def main(rows: int = 2000, concurrency: int = 16, slow_seconds: float = 1.0) -> None:
    receives, sends = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=serve, args=(sends, slow_seconds), daemon=True)
    server.start()
    port = receives.recv()
    assert len(list(texts(port, concurrency, concurrency))) == concurrency  # imports are not timed
    began = time.perf_counter()
    made = list(texts(port, rows, concurrency))
    seconds = time.perf_counter() - began
    assert made == [str(row) for row in range(rows)]
    mean = (slow_seconds + (SLOW_SHARE - 1) * FAST_SECONDS) / SLOW_SHARE
    limit = concurrency / mean if mean else float("inf")
    print(f"{rows} rows in {seconds:.2f} s, {rows / seconds:.0f} rows/s, limit {limit:.0f} rows/s")
    server.terminate()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *map(float, sys.argv[3:4]))
