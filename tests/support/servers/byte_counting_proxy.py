"""A relay to an HTTP server that counts requests and the bytes of responses, and may delay them."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

CHUNK = 1 << 18
REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")
"""The first line of a request. Clients wait for a response before the next request."""


@dataclass
class Relay:
    """The address of the relay, the bytes sent to clients, including headers, and the requests as
    `METHOD path`."""

    endpoint: str = ""
    bytes: int = 0
    requests: list[str] = field(default_factory=list)


@contextmanager
def counted(endpoint: str, latency: float = 0.0) -> Iterator[Relay]:
    """Relay to http://HOST:PORT while the block runs. `latency` delays each request (seconds)."""
    host, port = endpoint.removeprefix("http://").split(":")
    relay, lock = Relay(), threading.Lock()

    def carry(source: socket.socket, target: socket.socket, *, count: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                if count:
                    with lock:
                        relay.bytes += len(chunk)
                elif request := REQUEST.match(chunk):
                    relay.requests.append(b" ".join(request.groups()).decode())
                    time.sleep(latency)
                target.sendall(chunk)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection((host, int(port)))
                for source, target, count in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=carry, args=(source, target), kwargs={"count": count}, daemon=True
                    ).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        relay.endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
        yield relay
