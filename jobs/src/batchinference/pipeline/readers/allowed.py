"""Which addresses of a manifest are fetched.

Whoever writes a manifest chooses its addresses, but they are fetched with the job's network and
credentials. By default they may lead to the public internet, and to the manifest's own bucket or
directory. `allow` names other prefixes.
"""

from __future__ import annotations

import ipaddress
import os
import posixpath
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from batchinference.pipeline.storage import Address

_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Forbidden(Exception):
    """An address that is not fetched."""

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"{uri} is not fetched: {reason}. Add its prefix to read.options.allow")


class Allowed:
    """The prefixes of `read.options.allow`."""

    def __init__(self, prefixes: Sequence[str] = ()) -> None:
        self._prefixes = list(prefixes)

    def __reduce__(self) -> tuple[type[Allowed], tuple[list[str]]]:
        return Allowed, (self._prefixes,)

    def has_url(self, url: str) -> bool:
        """Return whether an http(s) URL has an allowed prefix: scheme, host, port and folder."""
        wanted = urlsplit(url)
        return any(
            _origin(prefix) == _origin(wanted) and _is_below(wanted.path, prefix.path)
            for prefix in map(urlsplit, self._prefixes)
        )

    def check_stored(self, address: Address, manifest: Address) -> None:
        """Raise Forbidden for an address in storage outside of the manifest's bucket or directory
        and of all prefixes."""
        if address.local:
            real = os.path.realpath(address.path)
            own = manifest.local and _is_below(real, posixpath.dirname(_real(manifest)))
        else:
            real = address.path
            same = not manifest.local and manifest.in_store_of(address)
            own = same and manifest.path.split("/", 1)[0] == address.path.split("/", 1)[0]
        if own:
            return
        for prefix in self._prefixes:
            if "://" in prefix or prefix.startswith("/"):
                place = Address(prefix, address.storage)
                if place.scheme == address.scheme and _is_below(real, _real(place)):
                    return
        raise Forbidden(address.uri, "it is outside of the manifest's own bucket or directory")


def _real(place: Address) -> str:
    return os.path.realpath(place.path) if place.local else place.path


def _origin(url: SplitResult) -> tuple[str, str, int | None]:
    return url.scheme, (url.hostname or "").lower(), url.port or _PORTS.get(url.scheme)


def _is_below(path: str, folder: str) -> bool:
    if ".." in path.split("/"):
        return False
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet: neither loopback, private,
    link-local (metadata services), multicast nor reserved."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(ip.packed[-4:])))
        if inner := ip.ipv4_mapped or ip.sixtofour:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


class _PublicOnly:
    """Refuses a connection after the name was resolved, so that no second answer of a name server
    can lead elsewhere."""

    def _new_conn(self) -> Any:
        connected = super()._new_conn()  # type: ignore[misc]
        if not is_public(connected.getpeername()[0]):
            connected.close()
            raise Forbidden(str(self.host), "it leads to a private network")  # type: ignore[attr-defined]
        return connected


class _PublicHttp(_PublicOnly, HTTPConnection):
    pass


class _PublicHttps(_PublicOnly, HTTPSConnection):
    pass


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _PublicHttp


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _PublicHttps


class PublicAdapter(HTTPAdapter):
    """Connects requests to the public internet only."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
