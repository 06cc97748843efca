"""The proxies of the environment, for libraries that do not read HTTPS_PROXY and NO_PROXY."""

from __future__ import annotations

from urllib.parse import urlsplit


def proxy_for(address: str) -> str | None:
    """Return the address of the proxy for an address, with its scheme, if there is one."""
    from requests import utils

    proxy = utils.get_environ_proxies(address).get(urlsplit(address).scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy
