"""Finds unreachable object stores within seconds. Their libraries would try for minutes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, as_completed
from functools import partial
from urllib.parse import urlsplit

from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import proxy_of_store, service_url

SECONDS = 4.0
"""How long a store, or the proxy in front of it, may take to accept a connection."""


def unreachable(locations: dict[str, Location], seconds: float = SECONDS) -> dict[str, str]:
    """Return a message for each store that does not answer within `seconds`, by the first key of
    its locations. Stores with wrong settings are not tried. Their libraries report the problem."""
    hosts: dict[tuple[str, int], str] = {}
    for name, location in locations.items():
        if not location.local and (host := _host_of(location)) is not None:
            hosts.setdefault(host, name)
    tries = {host: _in_thread(partial(_connect, host, seconds)) for host in hosts}
    problems = {hosts[host]: (host[0], _problem_of(tries[host], seconds)) for host in hosts}
    return {
        name: f"'{locations[name].uri}' cannot be reached: {host} does not answer ({problem})"
        for name, (host, problem) in problems.items()
        if problem is not None
    }


def _host_of(location: Location) -> tuple[str, int] | None:
    """Return the host and port to which the library of a store connects; None if uncertain."""
    if any(map(os.environ.get, ("ALL_PROXY", "all_proxy"))):
        return None  # only some libraries use this proxy
    try:
        address = service_url(location.scheme, location.storage)
        proxy = proxy_of_store(location.scheme, location.storage)
        parts = urlsplit(proxy or address or "")
        port = parts.port
    except (OSError, ValueError):
        return None
    if proxy is None and port is None:
        port = {"http": 80, "https": 443}.get(parts.scheme)
    known = address and port and parts.scheme in ("http", "https")
    return (parts.hostname, port) if known and port and parts.hostname else None


def _in_thread(connect: Callable[[], None]) -> Future[None]:
    """Call `connect` in a daemon thread, and return the future result."""
    result: Future[None] = Future()

    def run() -> None:
        try:
            connect()
            result.set_result(None)
        except OSError as error:
            result.set_exception(error)

    threading.Thread(target=run, name="reachable", daemon=True).start()
    return result


def _connect(host: tuple[str, int], seconds: float) -> None:
    """Connect to all IP addresses of a host at the same time, because IPv6 may not work. Raises
    OSError if no address accepts the connection."""
    addresses = [each[4] for each in socket.getaddrinfo(*host, type=socket.SOCK_STREAM)]
    targets = ((str(address[0]), host[1]) for address in addresses)
    tries = [_in_thread(partial(_connect_to, target, seconds)) for target in targets]
    if all(each.exception() for each in as_completed(tries)):
        tries[0].result()


def _connect_to(address: tuple[str, int], seconds: float) -> None:
    socket.create_connection(address, seconds).close()


def _problem_of(connection: Future[None], seconds: float) -> str | None:
    """Wait up to `seconds` for a connection. Return why it failed; None if it succeeded."""
    try:
        connection.result(seconds)
    except TimeoutError:  # perhaps the lookup of the name takes too long
        return f"no connection within {seconds:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None
