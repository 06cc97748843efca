"""Measures the upload of a request file to the batch service: `batch_upload.py LINES`.

The service runs in a process of its own, with a local directory as its store. The file is made
while it is sent. Prints the bytes, the rate, and the memory of the service before and at its peak.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
from aiohttp import web

from batchinference.service.cluster_client import Kubernetes
from batchinference.service.config import ServiceConfig
from batchinference.service.server import Service
from support.servers.ports import free_port
from support.service.running import KEYS, MODELS, request_line, write_keys

AT_ONCE, PADDING = 1000, "x" * 700
"""Lines of a block, and what makes a line about 1 kB long."""


def serve(directory: Path, port: int) -> None:
    async def application() -> web.Application:
        config = ServiceConfig.model_validate({"path": str(directory / "store"), "models": MODELS})
        cluster = Kubernetes("http://127.0.0.1:1", lambda: "")
        return Service(config, write_keys(directory / "keys", KEYS), cluster).application()

    web.run_app(application(), host="127.0.0.1", port=port, print=None)


async def lines(count: int) -> AsyncIterator[bytes]:
    body = {"model": "small", "messages": [{"role": "user", "content": PADDING}]}
    line = request_line(7_777_777, body=body) + "\n"
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        yield "".join(line.replace("7777777", str(number)) for number in numbers).encode()


async def upload(url: str, count: int) -> int:
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", lines(count), filename="a.jsonl")
    headers = {"Authorization": f"Bearer {KEYS['team-a']}"}
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{url}/v1/files", data=form, headers=headers) as answer,
    ):
        body = await answer.json()
        assert answer.status == web.HTTPOk.status_code, body
        return int(body["bytes"])


def _memory(pid: int, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 2**10


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        server = multiprocessing.get_context("spawn").Process(
            target=serve, args=(Path(directory), port), daemon=True
        )
        server.start()
        assert server.pid is not None
        while port not in {c.laddr.port for c in psutil.Process(server.pid).net_connections()}:
            time.sleep(0.1)
        before, began = _memory(server.pid, "VmRSS"), time.monotonic()
        size = asyncio.run(upload(f"http://127.0.0.1:{port}", count))
        seconds = time.monotonic() - began
        print(f"{count:,} lines, {size / 2**20:,.0f} MiB: {size / 2**20 / seconds:.0f} MiB/s, "
              f"{count / seconds:,.0f} lines/s; memory {before:.0f} MiB, at most "
              f"{_memory(server.pid, 'VmHWM'):.0f} MiB")  # fmt: skip
        server.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]))
