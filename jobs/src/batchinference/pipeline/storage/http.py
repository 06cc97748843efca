"""Fetching what lies behind an address, with retries.

An address that says itself that nothing is there is gone. One that gives no answer, or says that it
cannot answer now, is away: it is asked again a few times.
"""

from __future__ import annotations

import gzip
import math
import posixpath
import time
import zlib
from functools import cached_property
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import requests.utils
from requests.exceptions import ChunkedEncodingError
from tenacity import Retrying, stop_before_delay
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.exceptions import TimeoutError as TimeoutError_
from urllib3.util import parse_url

from batchinference.pipeline.storage.allowed_addresses import (
    Allowed,
    Forbidden,
    PublicAdapter,
    check_public,
)
from batchinference.pipeline.storage.http_deadline import TimedAdapter, until
from batchinference.pipeline.storage.http_retry import (
    LONGEST_PAUSE,
    TryAgain,
    asked_wait,
    is_transient_status,
    policy,
)
from batchinference.pipeline.storage.location import Location, is_storage_error
from batchinference.spec.uris import SCHEMES, scheme_of

THREADS = 16
ATTEMPTS = 5
TIMEOUTS = (10.0, 60.0)
"""Seconds until a connection stands, and between two pieces of an answer."""
MAX_SECONDS = 300.0
"""How long one answer may take as a whole, with headers and redirects."""
MAX_REDIRECTS = 5
TRANSIENT = (
    *(requests.ConnectionError, requests.Timeout, ChunkedEncodingError),
    *(ProtocolError, TimeoutError_),  # in the middle of an answer
)
NO_GZIP = (gzip.BadGzipFile, zlib.error)
CHUNK_BYTES = 1 << 16


class Gone(Exception):
    """There is nothing at an address, or it is none."""


class Away(TryAgain):
    """An address that gives no answer now."""


class Fetcher:
    """Fetches over http(s):// and from storage. It may be used by several threads."""

    def __init__(
        self,
        allowed: Allowed,
        max_bytes: int,
        allow_field: str = "read.options.allow",
        limit: str = "read.options.max_bytes",
    ) -> None:
        """`allow_field` and `limit` are what messages call the prefixes and `max_bytes`."""
        self._allowed, self._max_bytes = allowed, max_bytes
        self._allow_field, self._limit = allow_field, limit

    def __reduce__(self) -> tuple[type[Fetcher], tuple[Any, ...]]:
        # without the connections, which stay in their process
        return Fetcher, (self._allowed, self._max_bytes, self._allow_field, self._limit)

    @cached_property
    def _anywhere(self) -> requests.Session:
        return _session(TimedAdapter)

    @cached_property
    def _public(self) -> requests.Session:
        return _session(PublicAdapter)

    def fetch(self, uri: str, beside: Location) -> bytes:
        """The bytes behind an address. A relative path starts where the file `beside` lies.

        Raises Gone, Forbidden, or Away when trying again did not help.
        """
        if scheme_of(uri) in ("http", "https"):
            return self.fetch_url(uri)
        try:
            return self._from_storage(uri, beside)
        except Forbidden as error:
            raise self._with_fix(error) from None

    def fetch_url(self, url: str) -> bytes:
        """Return the bytes behind an http(s) URL. Raises as `fetch` does."""
        tries = policy(ATTEMPTS)
        tries["stop"] |= stop_before_delay(LONGEST_PAUSE)
        try:
            return Retrying(**tries)(self._get, url)
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
        except TRANSIENT as error:
            if time.monotonic() < deadline:
                raise Away(f"{shown(url)} gives no answer: {type(error).__name__}") from None
            slow = f"{shown(url)} has not sent everything within {MAX_SECONDS:g} s"
            raise Away(slow, math.inf) from None  # not asked again: it would take as long
        except EOFError:
            raise Away(f"{shown(url)} breaks off within its gzip stream") from None
        except (*(requests.RequestException, HTTPError, ValueError), *NO_GZIP) as error:
            raise Gone(f"{shown(url)} cannot be fetched: {type(error).__name__}") from None

    def _follow(self, url: str) -> bytes:
        """Fetch from where redirects lead; each is checked as the first address is."""
        for _ in range(1 + MAX_REDIRECTS):
            with self._answer(url) as answer:
                if not answer.is_redirect:
                    return self._content(url, answer)
                url = urljoin(url, answer.headers["location"])
            if scheme_of(url) not in ("http", "https"):
                raise Gone(f"{shown(url)}: redirects lead to http:// and https:// only")
        raise Gone(f"{shown(url)}: more than {MAX_REDIRECTS} redirects")

    def _answer(self, url: str) -> requests.Response:
        """The head of an answer. The URL is checked in the form in which it is sent."""
        sent = requests.Request("GET", url).prepare().url or ""
        session = self._anywhere
        if "\\" in url or not self._allowed.has_url(sent):
            session = self._public
            if requests.utils.get_environ_proxies(sent):  # the session would check the proxy's host
                place = parse_url(sent)
                check_public(place.host or "", place.port)
        # an `auth` of its own keeps requests from sending what ~/.netrc has for the host
        auth = requests.utils.get_auth_from_url(sent)
        return session.get(
            sent,
            auth=auth if any(auth) else _no_auth,
            headers={"Accept-Encoding": "identity"},
            timeout=TIMEOUTS,
            stream=True,
            allow_redirects=False,
        )

    def _content(self, url: str, answer: requests.Response) -> bytes:
        told = f"{shown(url)} answers {answer.status_code} {answer.reason}"
        if is_transient_status(answer.status_code):
            raise Away(told, asked_wait(answer.headers) or 0.0)
        if answer.status_code != HTTPStatus.OK:
            raise Gone(told)
        content, stream = bytearray(), _decoded(url, answer)
        while piece := stream.read(CHUNK_BYTES):
            content += piece
            self._check_size(url, len(content))
        return bytes(content)

    def _check_size(self, uri: str, size: int) -> None:
        if size > self._max_bytes:
            limit = f"{self._limit} ({self._max_bytes})"
            raise Gone(f"{shown(uri)} has more bytes than {limit}")

    def _from_storage(self, uri: str, beside: Location) -> bytes:
        """Storage tries again itself."""
        if scheme_of(uri) not in SCHEMES:
            raise Gone(f"{shown(uri)}: nothing can be fetched from {scheme_of(uri)}://")
        address = _address(uri, beside)
        self._allowed.check_stored(address, beside)
        try:
            content = address.read(self._max_bytes + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise Gone(f"{address.uri} does not exist") from None
        except OSError as error:
            kind = Away if is_storage_error(error) else Gone
            raise kind(f"{address.uri} cannot be read: {error}") from error
        self._check_size(address.uri, len(content))
        return content


def _decoded(url: str, answer: requests.Response) -> Any:
    """Return the content as a file. urllib3 would take a gzip stream that breaks off for whole."""
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity":
        return answer.raw
    if encoding in ("gzip", "x-gzip"):
        return gzip.GzipFile(fileobj=answer.raw)
    raise Gone(f"{shown(url)} answers with the Content-Encoding '{encoding}': only gzip is known")


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _session(adapter: type[TimedAdapter]) -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter(pool_connections=THREADS, pool_maxsize=THREADS))
    return session


def _address(uri: str, beside: Location) -> Location:
    if "://" in uri or uri.startswith("/"):
        return Location(uri, beside.storage)
    return beside.at(posixpath.normpath(posixpath.join(posixpath.dirname(beside.path), uri)))


def shown(uri: str) -> str:
    """An address without the parts in which secrets stand."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
