"""Fetching what lies behind an address, with retries.

An address that says itself that nothing is there is gone. One that gives no answer, or says that it
cannot answer now, is away: it is asked again a few times.
"""

from __future__ import annotations

import posixpath
import time
from functools import cached_property
from http import HTTPStatus
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import requests.utils
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError
from tenacity import Retrying
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.exceptions import TimeoutError as TimeoutError_
from urllib3.util import parse_url

from batchinference.pipeline.http_retries import TryAgain, asked_wait, is_passing, policy
from batchinference.pipeline.readers.allowed import Allowed, PublicAdapter, check_public
from batchinference.pipeline.storage import Address, is_trouble
from batchinference.spec.uris import SCHEMES, scheme_of

THREADS = 16
ATTEMPTS = 5
TIMEOUTS = (10.0, 60.0)
"""Seconds until a connection stands, and between two pieces of an answer."""
MAX_SECONDS = 300.0
"""How long one answer may take as a whole."""
MAX_REDIRECTS = 5
TRANSIENT = (
    *(requests.ConnectionError, requests.Timeout, ChunkedEncodingError),
    *(ProtocolError, TimeoutError_),  # in the middle of an answer
)
CHUNK_BYTES = 1 << 16


class Gone(Exception):
    """There is nothing at an address, or it is none."""


class Away(TryAgain):
    """An address that gives no answer now."""


class Fetcher:
    """Fetches over http(s):// and from storage. It may be used by several threads."""

    def __init__(self, allowed: Allowed, max_bytes: int) -> None:
        self._allowed = allowed
        self._max_bytes = max_bytes

    def __reduce__(self) -> tuple[type[Fetcher], tuple[Allowed, int]]:
        # without the connections, which stay in their process
        return Fetcher, (self._allowed, self._max_bytes)

    @cached_property
    def _anywhere(self) -> requests.Session:
        return _session(HTTPAdapter)

    @cached_property
    def _public(self) -> requests.Session:
        return _session(PublicAdapter)

    def fetch(self, uri: str, beside: Address) -> bytes:
        """The bytes behind an address. A relative path starts where the file `beside` lies.

        Raises Gone, Forbidden, or Away when trying again did not help.
        """
        if scheme_of(uri) not in ("http", "https"):
            return self._from_storage(uri, beside)
        return Retrying(**policy(ATTEMPTS))(self._get, uri)

    def _get(self, url: str) -> bytes:
        try:
            return self._follow(url)
        except TRANSIENT as error:
            raise Away(f"{shown(url)} gives no answer: {type(error).__name__}") from None
        except (requests.RequestException, HTTPError, ValueError) as error:
            raise Gone(f"{shown(url)} cannot be fetched: {type(error).__name__}") from None

    def _follow(self, url: str) -> bytes:
        """Fetch from where redirects lead; each is checked as the first address is."""
        deadline = time.monotonic() + MAX_SECONDS
        for _ in range(1 + MAX_REDIRECTS):
            with self._answer(url) as answer:
                if not answer.is_redirect:
                    return self._content(url, answer, deadline)
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

    def _content(self, url: str, answer: requests.Response, deadline: float) -> bytes:
        told = f"{shown(url)} answers {answer.status_code} {answer.reason}"
        if is_passing(answer.status_code):
            raise Away(told, asked_wait(answer.headers) or 0.0)
        if answer.status_code != HTTPStatus.OK:
            raise Gone(told)
        content = bytearray()
        while piece := answer.raw.read1(CHUNK_BYTES, decode_content=True):
            content += piece
            self._check_size(url, len(content))
            if time.monotonic() > deadline:
                raise Away(f"{shown(url)} has not sent everything within {MAX_SECONDS:g} s")
        return bytes(content)

    def _check_size(self, uri: str, size: int) -> None:
        if size > self._max_bytes:
            limit = f"read.options.max_bytes ({self._max_bytes})"
            raise Gone(f"{shown(uri)} has more bytes than {limit}")

    def _from_storage(self, uri: str, beside: Address) -> bytes:
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
            kind = Away if is_trouble(error) else Gone
            raise kind(f"{address.uri} cannot be read: {error}") from error
        self._check_size(address.uri, len(content))
        return content


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _session(adapter: type[HTTPAdapter]) -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter(pool_connections=THREADS, pool_maxsize=THREADS))
    return session


def _address(uri: str, beside: Address) -> Address:
    if "://" in uri or uri.startswith("/"):
        return Address(uri, beside.storage)
    return beside.at(posixpath.normpath(posixpath.join(posixpath.dirname(beside.path), uri)))


def shown(uri: str) -> str:
    """An address without the parts in which secrets stand."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
