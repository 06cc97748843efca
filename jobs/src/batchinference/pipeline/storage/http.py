"""Fetches content from an address, with retries.

If the server reports that an address does not exist, the error is PermanentFetchError. If the
server does not respond, or reports a transient error, the request is retried a few times, and the
error is TransientFetchError.
"""

from __future__ import annotations

import gzip
import io
import math
import posixpath
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import requests.utils
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from batchinference.pipeline.error_attribution import (
    is_network_error,
    is_storage_error,
    is_transient_status,
)
from batchinference.pipeline.storage import allowed_addresses, retry
from batchinference.pipeline.storage.allowed_addresses import (
    PRIVATE,
    Allowed,
    Forbidden,
    check_public,
)
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.retry import (
    LONGEST_PAUSE,
    TryAgain,
    retry_after,
)
from batchinference.spec.addresses import SCHEMES, scheme_of

THREADS = 16
TIMEOUTS = (10.0, 60.0)
"""Timeouts in seconds to connect, and between two chunks of a response."""
MAX_SECONDS = 300.0
"""Deadline in seconds for one whole response, including headers and redirects."""
MAX_REDIRECTS = 5
NO_GZIP = (gzip.BadGzipFile, zlib.error)
CHUNK_BYTES = 1 << 16
_DEADLINE: ContextVar[float] = ContextVar("deadline")


class PermanentFetchError(Exception):
    """A permanent error: an address is invalid, or its content is missing or unusable."""


class TransientFetchError(TryAgain):
    """A transient error: an address does not respond now."""


class Fetcher:
    """Fetches over http(s):// and from storage. Thread-safe."""

    def __init__(
        self,
        allowed: Allowed,
        max_bytes: int,
        allow_field: str = "read.options.allow",
        limit: str = "read.options.maxBytes",
    ) -> None:
        """Error messages use `allow_field` and `limit` as the names of `allowed` and
        `maxBytes`."""
        self._allowed, self._max_bytes = allowed, max_bytes
        self._allow_field, self._limit = allow_field, limit

    def fetch(self, uri: str, manifest: Location) -> bytes:
        """Return the bytes at an address. A relative path starts in the directory of `manifest`.

        Raises PermanentFetchError, Forbidden, or TransientFetchError if retries did not help.
        """
        if scheme_of(uri) in ("http", "https"):
            return self.fetch_url(uri)
        try:
            return self._from_storage(uri, manifest)
        except Forbidden as error:
            raise self._with_fix(error) from None

    def fetch_url(self, url: str) -> bytes:
        """Return the bytes at an http(s) URL. Raises the same errors as `fetch`."""
        policy = replace(retry.HTTP, max_seconds=LONGEST_PAUSE)
        try:
            return policy.call(self._get, url)
        except Forbidden as error:
            raise self._with_fix(error) from None

    def _with_fix(self, error: Forbidden) -> Forbidden:
        error.args = (f"{error}. Add its prefix to {self._allow_field}",)
        return error

    def _get(self, url: str) -> bytes:
        deadline = time.monotonic() + MAX_SECONDS
        try:
            with until(deadline):
                return self._follow(url)
        except EOFError:
            raise TransientFetchError(f"{shown(url)} breaks off within its gzip stream") from None
        except (*(requests.RequestException, HTTPError, ValueError), *NO_GZIP) as error:
            if not is_network_error(error):
                raise PermanentFetchError(
                    f"{shown(url)} cannot be fetched: {type(error).__name__}"
                ) from None
            if time.monotonic() < deadline:
                raise TransientFetchError(
                    f"{shown(url)} gives no answer: {type(error).__name__}"
                ) from None
            slow = f"{shown(url)} has not sent everything within {MAX_SECONDS:g} s"
            raise TransientFetchError(slow, math.inf) from None  # no retry: it would take as long

    def _follow(self, url: str) -> bytes:
        """Return the content after redirects. Each redirect is checked like the first address."""
        for _ in range(1 + MAX_REDIRECTS):
            with self._answer(url) as answer:
                if not answer.is_redirect:
                    return self._content(url, answer)
                url = urljoin(url, answer.headers["location"])
            if scheme_of(url) not in ("http", "https"):
                raise PermanentFetchError(
                    f"{shown(url)}: redirects lead to http:// and https:// only"
                )
        raise PermanentFetchError(f"{shown(url)}: more than {MAX_REDIRECTS} redirects")

    def _answer(self, url: str) -> requests.Response:
        """Return the response with its body unread. The URL is checked in the form that is sent."""
        sent = requests.Request("GET", url).prepare().url or ""
        session = _session(TimedAdapter)
        if "\\" in url or not self._allowed.has_url(sent):
            session = _session(PublicAdapter)
            if requests.utils.get_environ_proxies(sent):  # the session checks only the proxy's host
                place = parse_url(sent)
                check_public(place.host or "", place.port)
        # with an explicit `auth`, requests does not send the credentials for the host in ~/.netrc
        auth = requests.utils.get_auth_from_url(sent)
        return session.get(
            sent,
            auth=auth if any(auth) else lambda request: request,
            headers={"Accept-Encoding": "identity"},
            timeout=TIMEOUTS,
            stream=True,
            allow_redirects=False,
        )

    def _content(self, url: str, answer: requests.Response) -> bytes:
        message = f"{shown(url)} answers {answer.status_code} {answer.reason}"
        if is_transient_status(answer.status_code):
            raise TransientFetchError(message, retry_after(answer.headers) or 0.0)
        if answer.status_code != HTTPStatus.OK:
            raise PermanentFetchError(message)
        content, stream = bytearray(), _decoded(url, answer)
        while chunk := stream.read(CHUNK_BYTES):
            content += chunk
            self._check_size(url, len(content))
        return bytes(content)

    def _check_size(self, uri: str, size: int) -> None:
        if size > self._max_bytes:
            limit = f"{self._limit} ({self._max_bytes})"
            raise PermanentFetchError(f"{shown(uri)} has more bytes than {limit}")

    def _from_storage(self, uri: str, manifest: Location) -> bytes:
        """Return the bytes at an address in storage, which retries by itself."""
        if scheme_of(uri) not in SCHEMES:
            raise PermanentFetchError(
                f"{shown(uri)}: nothing can be fetched from {scheme_of(uri)}://"
            )
        address = self._allowed.stored(_address(uri, manifest), manifest)
        try:
            content = address.read(self._max_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise PermanentFetchError(f"{address.uri} does not exist") from None
        except IsADirectoryError:
            raise PermanentFetchError(f"{address.uri} cannot be read: it is a directory") from None
        except OSError as error:
            kind = TransientFetchError if is_storage_error(error) else PermanentFetchError
            raise kind(f"{address.uri} cannot be read: {error}") from error
        self._check_size(address.uri, len(content))
        return content


def _decoded(url: str, answer: requests.Response) -> Any:
    """Return the decoded content as a file. urllib3 would accept a truncated gzip stream."""
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity":
        return answer.raw
    if encoding in ("gzip", "x-gzip"):
        return gzip.GzipFile(fileobj=answer.raw)
    raise PermanentFetchError(
        f"{shown(url)} answers with the Content-Encoding '{encoding}': only gzip is known"
    )


@lru_cache(maxsize=2)
def _session(adapter: type[TimedAdapter]) -> requests.Session:
    """Return the session of this process, which keeps connections open."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter(pool_connections=THREADS, pool_maxsize=THREADS))
    return session


def _address(uri: str, manifest: Location) -> Location:
    if "://" in uri or uri.startswith("/"):
        return Location(uri, manifest.storage)
    return manifest.at(posixpath.normpath(posixpath.join(posixpath.dirname(manifest.path), uri)))


def shown(uri: str) -> str:
    """Return an address without the parts that may contain secrets."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@contextmanager
def until(deadline: float) -> Iterator[None]:
    """Make reads from connections of a TimedAdapter raise TimeoutError after the deadline, in
    seconds of time.monotonic().

    The timeout of a socket restarts with each byte. A server that sends its headers or its content
    byte by byte could block a thread for hours."""
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


class _PublicHttp(TimedHttp):
    """Checks the addresses of a host before it connects, and the peer address afterwards.

    A name server may answer differently the second time."""

    def _new_conn(self) -> socket.socket:
        check_public(self.host, self.port)
        connected = super()._new_conn()
        if not allowed_addresses.is_public(connected.getpeername()[0]):
            connected.close()
            raise Forbidden(self.host, PRIVATE)
        return connected


class _PublicHttps(_PublicHttp, TimedHttps):
    """The same under TLS."""


class PublicAdapter(TimedAdapter):
    """A requests adapter that connects to the public internet only."""

    pools = pools_of(_PublicHttp, _PublicHttps)
