"""A relay to a server that counts the bytes of its answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

CHUNK = 1 << 18


@dataclass
class Relay:
    """The address of the relay, and the bytes sent to clients, including headers."""

    endpoint: str = ""
    bytes: int = 0


@contextmanager
def counted(endpoint: str) -> Iterator[Relay]:
    """Relay to http://HOST:PORT while the block runs."""
    host, port = endpoint.removeprefix("http://").split(":")
    relay, lock = Relay(), threading.Lock()

    def carry(source: socket.socket, target: socket.socket, *, count: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                target.sendall(chunk)
                if count:
                    with lock:
                        relay.bytes += len(chunk)
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
