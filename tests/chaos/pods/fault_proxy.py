"""A proxy in front of an S3 server that injects faults: `fault_proxy.py SEED SHARE`.

It injects a fault into SHARE of all requests: it answers 503 instead of the server, cuts the
connection in the request or in the response, or delays the request. The other bytes pass unchanged,
because requests are signed. During a storm, another share applies: /tmp/storm contains the end of
the storm and its share. /tmp/faults has one line per fault: its kind, and the request's method and
path.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

UPSTREAM = ("s3", 7070)
PORT = 7071
CHUNK_BYTES = 1 << 16
"""The maximum number of bytes to forward at a time."""
MAX_DELAY_SECONDS = 3.0
UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
STORM, FAULT_LOG = Path("/tmp/storm"), Path("/tmp/faults")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_random = random.Random(int(sys.argv[1]))


class Cut(Exception):
    """Raised to cut the connection."""


@dataclass
class Connection:
    client: tuple[StreamReader, StreamWriter]
    server: tuple[StreamReader, StreamWriter]
    response_bytes_left: float = field(default=float("inf"))
    """Bytes of responses to forward before the connection is cut."""

    async def forward_requests(self) -> None:
        """Forward requests, one after the other."""
        reader, writer = self.client[0], self.server[1]
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if fault := chosen(head):
                await self.inject(fault, head)
            writer.write(head)
            if length := _LENGTH.search(head):
                await forward(reader, writer, int(length[1]))
            elif _CHUNKED.search(head):
                await forward_chunks(reader, writer)
            await writer.drain()

    async def inject(self, fault: str, head: bytes) -> None:
        """Inject this fault before the request is forwarded."""
        if fault == "503":
            self.client[1].write(UNAVAILABLE)
            await self.client[1].drain()
            raise Cut
        elif fault == "delayed":
            await asyncio.sleep(_random.uniform(0.1, MAX_DELAY_SECONDS))
        elif fault == "answer cut":
            self.response_bytes_left = _random.choice((0, 10, 1000))
        elif fault == "request cut":
            self.server[1].write(head)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):  # the request may be shorter
                    await forward(self.client[0], self.server[1], _random.randint(0, 1000))
            raise Cut

    async def forward_responses(self) -> None:
        """Forward the server's responses."""
        while data := await self.server[0].read(CHUNK_BYTES):
            if len(data) > self.response_bytes_left:
                self.client[1].write(data[: int(self.response_bytes_left)])
                await self.client[1].drain()
                raise Cut
            self.response_bytes_left -= len(data)
            self.client[1].write(data)
            await self.client[1].drain()


async def forward(reader: StreamReader, writer: StreamWriter, size: int) -> None:
    while size:
        data = await reader.read(min(size, CHUNK_BYTES))
        if not data:
            raise Cut
        writer.write(data)
        size -= len(data)
        await writer.drain()


async def forward_chunks(reader: StreamReader, writer: StreamWriter) -> None:
    """Forward the body of a request with chunked transfer encoding."""
    while True:
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
        size = int(line.split(b";")[0], 16)
        await forward(reader, writer, size)
        writer.write(await reader.readuntil(b"\r\n"))  # after the last chunk, no trailers
        if size == 0:
            return


def chosen(head: bytes) -> str | None:
    """Return the fault for this request, or None."""
    if _random.random() >= share():
        return None
    fault = _random.choice(("503", "delayed", "answer cut", "request cut"))
    method, path, _ = head.split(b" ", 2)
    with FAULT_LOG.open("a") as file:
        file.write(f"{fault}\t{method.decode()} {path.decode()}\n")
    return fault


def share() -> float:
    """Return the share of requests that get a fault at present."""
    if STORM.exists():
        end, storm_share = map(float, STORM.read_text().split())
        if time.time() < end:
            return storm_share
    return float(sys.argv[2])


async def connected(client_reader: StreamReader, client_writer: StreamWriter) -> None:
    """Serve a connection until one side closes it, or until it is cut."""
    try:
        server = await asyncio.open_connection(*UPSTREAM)
    except OSError:  # while the server is down, the proxy refuses connections too
        client_writer.transport.abort()
        return
    connection = Connection((client_reader, client_writer), server)
    directions = [
        asyncio.create_task(forward_all())
        for forward_all in (connection.forward_requests, connection.forward_responses)
    ]
    await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    for direction in directions:
        direction.cancel()
    ends = await asyncio.gather(*directions, return_exceptions=True)
    for writer in (client_writer, server[1]):
        if any(isinstance(end, Cut) for end in ends):
            writer.transport.abort()
        else:
            writer.close()  # sends buffered bytes first


async def main() -> None:
    server = await asyncio.start_server(connected, port=PORT, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    FAULT_LOG.touch()
    asyncio.run(main())
