"""Pages of lists of names, such as those of all files."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable

from batchinference.service.api_error import bad_request

KEPT_SECONDS, KEPT_LISTS = 60.0, 64


class Pages:
    """Keeps lists for a while: a client that reads all pages lists the names once a minute."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[float, list[str], dict[str, int]]] = {}

    async def after(
        self, key: Hashable, load: Callable[[], Awaitable[list[str]]], name: str | None
    ) -> list[str]:
        """Return the names after a name; all if it is None. The first page always calls `load`.
        Raises ApiError if there is no such name."""
        if name is None:
            self._kept.pop(key, None)
        since, names, places = self._kept.get(key, (0.0, [], {}))
        if name not in places or time.monotonic() - since > KEPT_SECONDS:
            names = await load()
            places = {each: at for at, each in enumerate(names)}
            while len(self._kept) >= KEPT_LISTS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = time.monotonic(), names, places
        if name is not None and name not in places:
            raise bad_request("after: there is no such object", "after")
        return names if name is None else names[places[name] + 1 :]
