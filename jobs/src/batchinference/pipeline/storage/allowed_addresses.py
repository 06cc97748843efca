"""Checks which addresses in input rows may be fetched.

The addresses are untrusted, but they are fetched with the network access and the credentials of the
job. By default, only the public internet is allowed. If a file lists the addresses (a manifest),
the bucket or directory of this file is allowed too. The option `allow` adds allowed prefixes."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from urllib3.util import Url, parse_url

from batchinference.file_names import escaped, os_path
from batchinference.pipeline.storage.location import Location

_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NEVER = [
    ipaddress.ip_network(network)
    for network in (
        *("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24"),  # cloud services, relays
        *("::/3", "4000::/2", "8000::/1", "3fff::/20"),  # outside of 2000::/3; documentation
    )
]
MAX_ESCAPES = 5
"""Maximum number of nested levels of percent-encoding in a path."""
_NOT_PLAIN = re.compile(r"[\x00-\x1f\x7f]|\xc0[\x80-\xbf]|\xe0[\x80-\x9f]|\xf0[\x80-\x8f]")
"""Matches control characters, and overlong UTF-8 (read as Latin-1), which can hide `.` or `/`."""
_DOTS = re.compile(r"\s*\.(?:\.|\W|$)")
"""Matches a part of a path that may be taken for `.` or `..`."""
PRIVATE = "it leads to a private network"


class Forbidden(Exception):
    """An address must not be fetched."""

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(f"{uri} is not fetched: {reason}")


@dataclass(frozen=True)
class Allowed:
    """The prefixes of the option `allow`."""

    prefixes: Sequence[str] = ()

    def has_url(self, url: str) -> bool:
        """Return whether a URL has an allowed prefix (scheme, host, port, folder). The URL is
        parsed by urllib3, which also opens the connection. Other parsers could see other hosts."""
        wanted = parse_url(url)
        path = wanted.path or "/"
        return (
            wanted.auth is None
            and _is_plain(path)
            and any(
                _origin(prefix) == _origin(wanted) and _is_below(path, prefix.path or "/")
                for prefix in map(parse_url, self.prefixes)
            )
        )

    def stored(self, address: Location, manifest: Location) -> Location:
        """Return a Location for an address in storage. Raises Forbidden if the address has no
        allowed prefix and is outside of the manifest's bucket or directory.

        The Location reads no other files, even if somebody replaces a file by a link later."""
        real = _real(address)
        own_folders = list(_own_folders(address, manifest))
        prefixes = (Location(prefix, address.storage) for prefix in self.prefixes)
        allowed = [_real(each) for each in prefixes if each.scheme == address.scheme]
        plain = address.local or _is_plain(real)  # a local path is already resolved
        if not plain or not any(_is_below(real, folder) for folder in (*own_folders, *allowed)):
            raise Forbidden(address.uri, "it is outside of the manifest's own bucket or directory")
        return replace(address, allowed=(*own_folders, *allowed)) if address.local else address


def _own_folders(address: Location, manifest: Location) -> Iterator[str]:
    """Yield the folders in which addresses of a manifest are always allowed. In an object store,
    this is the bucket of the manifest. For a local manifest, it is its directory and, if the
    manifest is a link, the directory of the target. Other stores have no such folder."""
    if address.local and manifest.local:
        yield escaped(os.path.realpath(os_path(os.path.dirname(manifest.path))))
        yield os.path.dirname(_real(manifest))
    elif not address.local and not manifest.local and manifest.in_store_of(address):
        yield manifest.path.split("/", 1)[0]


def _real(location: Location) -> str:
    """Return the path of a location. In a local path, symbolic links are resolved."""
    return escaped(os.path.realpath(os_path(location.path))) if location.local else location.path


def _origin(url: Url) -> tuple[str | None, str | None, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme or "")


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _is_plain(path: str) -> bool:
    """Return whether all servers understand a path in the same way.

    Servers decode a path once or several times, some with other encodings, and ignore the text
    after some characters. So no part may look like `.` or `..`, or have a control character."""
    for _ in range(MAX_ESCAPES):
        unescaped = unquote(path, "latin-1")
        if unescaped == path:
            break
        if _NOT_PLAIN.search(unescaped):
            return False
        path = unquote(path)
    else:
        return False
    path = unicodedata.normalize("NFKC", path).replace("\\", "/")
    return not (_NOT_PLAIN.search(path) or any(map(_DOTS.match, path.split("/"))))


def is_public(address: str) -> bool:
    """Return whether an IP address is public: not loopback, private, link-local (such as metadata
    services), multicast or reserved."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return is_public(str(ipaddress.IPv4Address(ip.packed[-4:])))
        if inner := ip.ipv4_mapped or ip.sixtofour:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not any(ip in net for net in _NEVER)


def check_public(host: str, port: int | None) -> None:
    """Raise Forbidden if an IP address of a host is not public. A name that this machine cannot
    resolve is allowed, because a proxy may resolve it."""
    try:
        infos = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return
    if not all(is_public(str(info[4][0])) for info in infos):
        raise Forbidden(host, PRIVATE)
