"""Fetching what lies behind an address, with retries.

An address that says itself that nothing is there is gone. One that gives no answer, or says that it
cannot answer now, is away: it is asked again a few times.
"""

from __future__ import annotations

import posixpath
from functools import cached_property
from urllib.parse import urlsplit, urlunsplit

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError
from tenacity import Retrying

from batchinference.pipeline.http_retries import TryAgain, asked_wait, is_passing, policy
from batchinference.pipeline.storage import Address, is_trouble
from batchinference.spec.uris import SCHEMES, scheme_of

THREADS = 16
ATTEMPTS = 5
TIMEOUTS = (10.0, 60.0)
"""Seconds until a connection stands, and between two pieces of an answer."""


class Gone(Exception):
    """There is nothing at an address, or it is none."""


class Away(TryAgain):
    """An address that gives no answer now."""


class Fetcher:
    """Fetches over http(s):// and from storage. It may be used by several threads."""

    def __reduce__(self) -> tuple[type[Fetcher], tuple[()]]:
        return Fetcher, ()  # without the connections, which stay in their process

    @cached_property
    def _session(self) -> requests.Session:
        session = requests.Session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_connections=THREADS, pool_maxsize=THREADS))
        return session

    def fetch(self, uri: str, beside: Address) -> bytes:
        """The bytes behind an address. A relative path starts where the file `beside` lies.

        Raises Gone, or Away when trying again did not help.
        """
        if scheme_of(uri) not in ("http", "https"):
            return _from_storage(uri, beside)
        return Retrying(**policy(ATTEMPTS))(self._get, uri)

    def _get(self, url: str) -> bytes:
        try:
            answer = self._session.get(url, timeout=TIMEOUTS)
        except (requests.ConnectionError, requests.Timeout, ChunkedEncodingError) as error:
            raise Away(f"{shown(url)} gives no answer: {type(error).__name__}") from None
        except requests.RequestException as error:
            raise Gone(f"{shown(url)} cannot be fetched: {type(error).__name__}") from None
        told = f"{shown(url)} answers {answer.status_code} {answer.reason}"
        if is_passing(answer.status_code):
            raise Away(told, asked_wait(answer.headers) or 0.0)
        if not answer.ok:
            raise Gone(told)
        return answer.content


def _from_storage(uri: str, beside: Address) -> bytes:
    """Storage tries again itself."""
    if scheme_of(uri) not in SCHEMES:
        raise Gone(f"{shown(uri)}: nothing can be fetched from {scheme_of(uri)}://")
    address = _address(uri, beside)
    try:
        return address.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise Gone(f"{address.uri} does not exist") from None
    except OSError as error:
        kind = Away if is_trouble(error) else Gone
        raise kind(f"{address.uri} cannot be read: {error}") from error


def _address(uri: str, beside: Address) -> Address:
    if "://" in uri or uri.startswith("/"):
        return Address(uri, beside.storage)
    return beside.at(posixpath.normpath(posixpath.join(posixpath.dirname(beside.path), uri)))


def shown(uri: str) -> str:
    """An address without the parts in which secrets stand."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
