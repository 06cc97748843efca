"""Fetches the content behind a URL or an address in storage, with retries.

If the content does not exist, PermanentFetchError is raised. If the server does not respond, or
reports a transient error, a few retries follow, and then TransientFetchError is raised."""

from __future__ import annotations

import gzip
import math
import posixpath
import socket
import time
import zlib
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import requests.utils
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from batchinference.pipeline.error_classification import (
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
from batchinference.pipeline.storage.retry import LONGEST_PAUSE, TransientError, retry_after
from batchinference.spec.addresses import SCHEMES, scheme_of

THREADS = 16
TIMEOUTS = (10.0, 60.0)
"""Connect and read timeouts in seconds. The read timeout limits the wait for one chunk."""
MAX_SECONDS = 300.0
"""Deadline in seconds for one whole response, including redirects."""
MAX_REDIRECTS = 5
BAD_GZIP = (gzip.BadGzipFile, zlib.error)
CHUNK_BYTES = 1 << 16


class PermanentFetchError(Exception):
    """A permanent error: an address is invalid, or its content is missing or unusable."""


class TransientFetchError(TransientError):
    """A transient error: the server does not respond now."""


class Fetcher:
    """Fetches over HTTP(S) and from storage. Thread-safe."""

    def __init__(
        self,
        allowed: Allowed,
        max_bytes: int,
        allow_field: str = "read.options.allow",
        limit: str = "read.options.maxBytes",
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """`allow_field` and `limit` are the names of `allowed` and `max_bytes` in messages."""
        self._allowed, self._max_bytes, self._max_seconds = allowed, max_bytes, max_seconds
        self._allow_field, self._limit = allow_field, limit

    def fetch(self, uri: str, manifest: Location) -> bytes:
        """Return the bytes at an address. A relative path begins at the directory of `manifest`,
        the file with the address.

        Raises PermanentFetchError, TransientFetchError, or Forbidden for a refused address."""
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
        deadline = time.monotonic() + self._max_seconds
        try:
            return self._follow(url, deadline)
        except EOFError:
            raise TransientFetchError(f"{redact_url(url)} ends within its gzip stream") from None
        except (requests.RequestException, HTTPError, ValueError, TimeoutError, *BAD_GZIP) as error:
            if not is_network_error(error):
                raise PermanentFetchError(
                    f"{redact_url(url)} cannot be fetched: {type(error).__name__}"
                ) from None
            if time.monotonic() < deadline:
                raise TransientFetchError(
                    f"{redact_url(url)} gives no answer: {type(error).__name__}"
                ) from None
            slow = f"{redact_url(url)} has not sent everything within {self._max_seconds:g} s"
            raise TransientFetchError(slow, math.inf) from None  # a retry would take as long

    def _follow(self, url: str, deadline: float) -> bytes:
        """Follow redirects and return the content. Each redirect is checked like the first URL."""
        for _ in range(1 + MAX_REDIRECTS):
            with self._answer(url) as answer:
                if not answer.is_redirect:
                    return self._content(url, answer, deadline)
                url = urljoin(url, answer.headers["location"])
            if scheme_of(url) not in ("http", "https"):
                raise PermanentFetchError(
                    f"{redact_url(url)}: redirects lead to http:// and https:// only"
                )
        raise PermanentFetchError(f"{redact_url(url)}: more than {MAX_REDIRECTS} redirects")

    def _answer(self, url: str) -> requests.Response:
        """Send a request, and return the response before its body is read. The check of the URL
        uses exactly the text that is sent."""
        sent = requests.Request("GET", url).prepare().url or ""
        session = _session(HTTPAdapter)
        if "\\" in url or not self._allowed.has_url(sent):
            session = _session(PublicAdapter)
            if requests.utils.get_environ_proxies(sent):  # connections to proxies are not checked
                parts = parse_url(sent)
                check_public(parts.host or "", parts.port)
        # without an explicit `auth`, requests would send credentials from ~/.netrc
        auth = requests.utils.get_auth_from_url(sent)
        return session.get(
            sent,
            auth=auth if any(auth) else lambda request: request,
            headers={"Accept-Encoding": "identity"},
            timeout=TIMEOUTS,
            stream=True,
            allow_redirects=False,
        )

    def _content(self, url: str, answer: requests.Response, deadline: float) -> bytes:
        message = f"{redact_url(url)} answers {answer.status_code} {answer.reason}"
        if is_transient_status(answer.status_code):
            raise TransientFetchError(message, retry_after(answer.headers) or 0.0)
        if answer.status_code != HTTPStatus.OK:
            raise PermanentFetchError(message)
        content, stream = bytearray(), _decoded(url, answer, _Stream(answer, deadline))
        while chunk := stream.read(CHUNK_BYTES):
            content += chunk
            self._check_size(url, len(content))
        return bytes(content)

    def _check_size(self, uri: str, size: int) -> None:
        if size > self._max_bytes:
            limit = f"{self._limit} ({self._max_bytes})"
            raise PermanentFetchError(f"{redact_url(uri)} has more bytes than {limit}")

    def _from_storage(self, uri: str, manifest: Location) -> bytes:
        """Return the bytes at an address in storage. `Location.read` retries transient errors."""
        if scheme_of(uri) not in SCHEMES:
            raise PermanentFetchError(
                f"{redact_url(uri)}: nothing can be fetched from {scheme_of(uri)}://"
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


def _decoded(url: str, answer: requests.Response, stream: _Stream) -> Any:
    """Return the decompressed content as a file. urllib3 would accept a truncated gzip stream."""
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity":
        return stream
    if encoding in ("gzip", "x-gzip"):
        return gzip.GzipFile(fileobj=cast(Any, stream), mode="rb")
    raise PermanentFetchError(
        f"{redact_url(url)} answers with the Content-Encoding '{encoding}': only gzip is known"
    )


@lru_cache(maxsize=2)
def _session(adapter: type[HTTPAdapter]) -> requests.Session:
    """Return the session of this process for an adapter. A session keeps connections open."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter(pool_connections=THREADS, pool_maxsize=THREADS))
    return session


def _address(uri: str, manifest: Location) -> Location:
    if "://" in uri or uri.startswith("/"):
        return Location(uri, manifest.storage)
    return manifest.at(posixpath.normpath(posixpath.join(posixpath.dirname(manifest.path), uri)))


def redact_url(uri: str) -> str:
    """Return an address without the parts that may contain secrets."""
    parts = urlsplit(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class _Stream:
    """The raw content of a response, as it arrives. Reads after `deadline` (a `time.monotonic()`)
    raise TimeoutError, because the read timeout starts again with each chunk."""

    def __init__(self, answer: requests.Response, deadline: float) -> None:
        self._raw, self._deadline = answer.raw, deadline

    def read(self, size: int = -1) -> bytes:
        if time.monotonic() > self._deadline:
            raise TimeoutError("the deadline has passed")
        content: bytes = self._raw.read1(size)
        return content


class _PublicHttp(HTTPConnection):
    """Checks the IP addresses of a host before it connects. Then it checks the address of the peer,
    because the name server may have answered the second time with another address."""

    def _new_conn(self) -> socket.socket:
        check_public(self.host, self.port)
        connected = super()._new_conn()
        if not allowed_addresses.is_public(connected.getpeername()[0]):
            connected.close()
            raise Forbidden(self.host, PRIVATE)
        return connected


class _PublicHttps(_PublicHttp, HTTPSConnection):
    """Checks addresses as `_PublicHttp` does, and connects with TLS."""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _PublicHttp


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _PublicHttps


class PublicAdapter(HTTPAdapter):
    """A requests adapter that connects to the public internet only, or to a proxy."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make the pool create connections that check the IP addresses of hosts."""
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
