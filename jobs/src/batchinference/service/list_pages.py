"""Divides long lists of names, such as the ids of all files, into pages."""

import time
from collections.abc import Awaitable, Callable, Hashable

from batchinference.service.api_error import bad_request

KEPT_SECONDS, KEPT_LISTS = 60.0, 64
"""Seconds for which a list is cached, and maximum number of cached lists."""


class Pages:
    """Caches lists for KEPT_SECONDS. So a client that reads several pages causes one listing."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[float, list[str], dict[str, int]]] = {}

    async def after(
        self, key: Hashable, load: Callable[[], Awaitable[list[str]]], name: str | None
    ) -> list[str]:
        """Return the names after `name` in the list with this key. If `name` is None, return the
        full list. `load` reads the list if `name` is None, or if the cached list is too old or
        lacks `name`. Raises ApiError if `name` is still missing."""
        if name is None:
            self._kept.pop(key, None)
        since, names, indexes = self._kept.get(key, (0.0, [], {}))
        if name not in indexes or time.monotonic() - since > KEPT_SECONDS:
            names = await load()
            indexes = {each: at for at, each in enumerate(names)}
            while len(self._kept) >= KEPT_LISTS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = time.monotonic(), names, indexes
        if name is not None and name not in indexes:
            raise bad_request("after: there is no such object", "after")
        return names if name is None else names[indexes[name] + 1 :]
