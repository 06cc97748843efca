"""A proxy in front of an S3 server that spoils some requests: spoiling_proxy.py SEED SHARE

Other bytes pass unchanged, because requests are signed. The proxy spoils a request in one of these
ways: it answers 503 instead of the server, it cuts the connection in the request or in the answer,
or it delays the request. Usually it spoils SHARE of all requests. During a storm it spoils another
share; /tmp/storm contains the end of the storm and that share. /tmp/spoilt has one line per spoilt
request: the kind of fault, and the request's method and path.
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
MOST = 1 << 16
"""Maximum bytes that are passed on at a time."""
LONGEST_DELAY = 3.0
UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
STORM, SPOILT = Path("/tmp/storm"), Path("/tmp/spoilt")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_random = random.Random(int(sys.argv[1]))


class Cut(Exception):
    """Raised to cut the connection."""


@dataclass
class Connection:
    client: tuple[StreamReader, StreamWriter]
    server: tuple[StreamReader, StreamWriter]
    answer_left: float = field(default=float("inf"))
    """Bytes of answers that are still passed on before the connection is cut."""

    async def requests(self) -> None:
        """Pass on requests, one after the other."""
        reader, writer = self.client[0], self.server[1]
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if spoil := chosen(head):
                await self.spoil(spoil, head)
            writer.write(head)
            if length := _LENGTH.search(head):
                await passed(reader, writer, int(length[1]))
            elif _CHUNKED.search(head):
                await passed_in_chunks(reader, writer)
            await writer.drain()

    async def spoil(self, spoil: str, head: bytes) -> None:
        """Inject this fault before the request is passed on."""
        if spoil == "503":
            self.client[1].write(UNAVAILABLE)
            await self.client[1].drain()
            raise Cut
        elif spoil == "delayed":
            await asyncio.sleep(_random.uniform(0.1, LONGEST_DELAY))
        elif spoil == "answer cut":
            self.answer_left = _random.choice((0, 10, 1000))
        elif spoil == "request cut":
            self.server[1].write(head)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):  # the request may be shorter
                    await passed(self.client[0], self.server[1], _random.randint(0, 1000))
            raise Cut

    async def answers(self) -> None:
        """Pass on the server's answers."""
        while data := await self.server[0].read(MOST):
            if len(data) > self.answer_left:
                self.client[1].write(data[: int(self.answer_left)])
                await self.client[1].drain()
                raise Cut
            self.answer_left -= len(data)
            self.client[1].write(data)
            await self.client[1].drain()


async def passed(reader: StreamReader, writer: StreamWriter, size: int) -> None:
    while size:
        data = await reader.read(min(size, MOST))
        if not data:
            raise Cut
        writer.write(data)
        size -= len(data)
        await writer.drain()


async def passed_in_chunks(reader: StreamReader, writer: StreamWriter) -> None:
    """Pass on the body of a request with chunked transfer encoding."""
    while True:
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
        size = int(line.split(b";")[0], 16)
        await passed(reader, writer, size)
        writer.write(await reader.readuntil(b"\r\n"))  # after the last chunk, no trailers
        if size == 0:
            return


def chosen(head: bytes) -> str | None:
    """Return the fault for this request, or None."""
    if _random.random() >= share():
        return None
    spoil = _random.choice(("503", "delayed", "answer cut", "request cut"))
    method, path, _ = head.split(b" ", 2)
    with SPOILT.open("a") as file:
        file.write(f"{spoil}\t{method.decode()} {path.decode()}\n")
    return spoil


def share() -> float:
    """Return the share of requests that is spoilt at present."""
    if STORM.exists():
        end, wild = map(float, STORM.read_text().split())
        if time.time() < end:
            return wild
    return float(sys.argv[2])


async def connected(client_reader: StreamReader, client_writer: StreamWriter) -> None:
    """Serve a connection until one side closes it, or until it is cut."""
    try:
        server = await asyncio.open_connection(*UPSTREAM)
    except OSError:  # while the server is away, the proxy refuses connections too
        client_writer.transport.abort()
        return
    connection = Connection((client_reader, client_writer), server)
    ways = [asyncio.create_task(way()) for way in (connection.requests, connection.answers)]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for way in ways:
        way.cancel()
    ends = await asyncio.gather(*ways, return_exceptions=True)
    for writer in (client_writer, server[1]):
        if any(isinstance(end, Cut) for end in ends):
            writer.transport.abort()
        else:
            writer.close()  # sends buffered bytes first


async def main() -> None:
    server = await asyncio.start_server(connected, port=PORT, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    SPOILT.touch()
    asyncio.run(main())
