"""A deadline for a whole HTTP response.

The timeout of a socket restarts with each byte. A server that sends its headers or its content byte
by byte could block a thread for hours.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPResponse
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

_DEADLINE: ContextVar[float] = ContextVar("deadline")


@contextmanager
def until(deadline: float) -> Iterator[None]:
    """Make reads from connections of a TimedAdapter raise TimeoutError after the deadline.

    This applies within the `with` block. The deadline is in seconds of time.monotonic()."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


class _TimedStream(io.RawIOBase):
    """The data of a socket. Each read has the time until the deadline as its timeout."""

    def __init__(self, stream: io.RawIOBase, sock: Any) -> None:
        self._stream, self._sock = stream, sock
        self._timeout = sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = _DEADLINE.get() - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self._sock.settimeout(left if self._timeout is None else min(left, self._timeout))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """A response whose headers are also subject to the deadline."""

    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp: Any = io.BufferedReader(_TimedStream(self.fp.detach(), sock))


class TimedHttp(HTTPConnection):
    response_class = _TimedResponse


class TimedHttps(TimedHttp, HTTPSConnection):
    """The same under TLS."""


def pools_of(
    http: type[HTTPConnection], https: type[HTTPSConnection]
) -> dict[str, type[HTTPConnectionPool]]:
    """Return connection pool classes for these connection classes, by scheme."""

    class HttpPool(HTTPConnectionPool):
        ConnectionCls = http

    class HttpsPool(HTTPSConnectionPool):
        ConnectionCls = https

    return {"http": HttpPool, "https": HttpsPool}


class TimedAdapter(HTTPAdapter):
    """A requests adapter whose connections obey the deadline of `until`."""

    pools = pools_of(TimedHttp, TimedHttps)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self.pools

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        if proxy.lower().startswith("http"):  # SOCKS uses other connection classes
            manager.pool_classes_by_scheme = TimedAdapter.pools
        return manager
