"""Finds object stores that do not answer, within seconds. Their libraries try for minutes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, as_completed
from urllib.parse import urlsplit

from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import address_of, proxy_of_store

SECONDS = 4.0
"""How long a store, or the proxy in front of it, may take to accept a connection."""


def unreachable(places: dict[str, Location]) -> dict[str, str]:
    """Return why stores do not answer, by the name of the first of these places in each. A store
    whose settings are wrong is left to its library."""
    hosts: dict[tuple[str, int], str] = {}
    for name, place in places.items():
        if not place.local and (host := _host_of(place)) is not None:
            hosts.setdefault(host, name)
    tries = {host: _in_thread(_connect, host) for host in hosts}
    problems = {hosts[host]: (host[0], _problem_of(found)) for host, found in tries.items()}
    return {
        name: f"'{places[name].uri}' cannot be reached: {host} does not answer ({problem})"
        for name, (host, problem) in problems.items()
        if problem is not None
    }


def _host_of(place: Location) -> tuple[str, int] | None:
    """Return the host to which the library of a store connects first; None if it is not sure."""
    if any(map(os.environ.get, ("ALL_PROXY", "all_proxy"))):
        return None  # only some libraries use it
    try:
        address = address_of(place.scheme, place.storage)
        proxy = proxy_of_store(place.scheme, place.storage)
        parts = urlsplit(proxy or address or "")
        port = parts.port
    except (OSError, ValueError):
        return None
    if proxy is None and port is None:
        port = {"http": 80, "https": 443}.get(parts.scheme)
    known = address and port and parts.scheme in ("http", "https")
    return (parts.hostname, port) if known and port and parts.hostname else None


def _in_thread(connect: Callable[[tuple[str, int]], None], host: tuple[str, int]) -> Future[None]:
    """Return the result of a call, once it is there. The thread ends with the program."""
    result: Future[None] = Future()

    def run() -> None:
        try:
            connect(host)
            result.set_result(None)
        except OSError as error:
            result.set_exception(error)

    threading.Thread(target=run, name="reachable", daemon=True).start()
    return result


def _connect(host: tuple[str, int]) -> None:
    """Connect to all addresses of a host at once, because IPv6 may not work. Raises OSError if
    none accepts the connection."""
    addresses = [each[4] for each in socket.getaddrinfo(*host, type=socket.SOCK_STREAM)]
    tries = [_in_thread(_connect_to, (str(address[0]), host[1])) for address in addresses]
    if all(each.exception() for each in as_completed(tries)):
        tries[0].result()


def _connect_to(address: tuple[str, int]) -> None:
    socket.create_connection(address, SECONDS).close()


def _problem_of(connection: Future[None]) -> str | None:
    try:
        connection.result(SECONDS)
    except TimeoutError:  # also a name that is still looked up
        return f"no connection within {SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None
