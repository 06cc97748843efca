"""Finds object stores that do not answer, within seconds. Their libraries try for minutes."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from urllib.parse import urlsplit

from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import address_of, proxy_of

SECONDS = 4.0
"""How long a store, or the proxy in front of it, may take to accept a connection."""


def unreachable(places: dict[str, Location]) -> dict[str, str]:
    """Return why stores do not answer, by the name of the first of these places in each. A store
    whose settings are wrong is left to its library."""
    hosts: dict[tuple[str, int], str] = {}
    for name, place in places.items():
        if not place.local and (host := _host_of(place)) is not None:
            hosts.setdefault(host, name)
    tries = {host: _connection(host) for host in hosts}
    problems = {hosts[host]: (host[0], _problem_of(found)) for host, found in tries.items()}
    return {
        name: f"'{places[name].uri}' cannot be reached: {host} does not answer ({problem})"
        for name, (host, problem) in problems.items()
        if problem is not None
    }


def _host_of(place: Location) -> tuple[str, int] | None:
    try:
        address = address_of(place.scheme, place.storage)
        parts = urlsplit(proxy_of(address) or address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except (OSError, ValueError):
        return None
    return (parts.hostname, port) if parts.hostname else None


def _connection(host: tuple[str, int]) -> Future[socket.socket]:
    """Return the connection to a host, once it is there. The thread ends with the program."""
    found: Future[socket.socket] = Future()

    def connect() -> None:
        try:
            found.set_result(socket.create_connection(host, SECONDS))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=connect, name="reachable", daemon=True).start()
    return found


def _problem_of(connection: Future[socket.socket]) -> str | None:
    try:
        connection.result(SECONDS).close()
    except TimeoutError:  # also a name that is still looked up
        return f"no connection within {SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return None
