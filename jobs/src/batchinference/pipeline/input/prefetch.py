"""Fetches files in threads while a reader decodes earlier files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, takewhile
from threading import Event
from typing import Generic, TypeVar

File = TypeVar("File")
Content = TypeVar("Content")
Item = TypeVar("Item")

MAX_THREADS = 16


class Prefetch(Generic[File, Content]):
    """Calls `fetch` for the files of each group while the caller reads the group before it.

    The threads share a CPU with the decoder, so there are few: `threads` at first. Their number
    doubles (up to MAX_THREADS) after each group for which the caller waits."""

    def __init__(self, fetch: Callable[[File], Content], threads: int) -> None:
        self._fetch, self.threads = fetch, threads
        self._pool = ThreadPoolExecutor(MAX_THREADS)
        self._ended = Event()

    def __enter__(self) -> Prefetch[File, Content]:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()  # each thread stops after the file that it fetches now
        self._pool.shutdown(cancel_futures=True)

    def fetched(self, groups: Iterable[list[File]]) -> Iterator[tuple[File, Content]]:
        """Yield the files of all groups with their contents, in order."""
        started = ((group, self._start(group)) for group in groups)
        for number, (group, parts) in enumerate(_one_ahead(started)):
            # nothing is read while the first group is fetched, so waiting for it does not count
            if number and not all(part.done() for part in parts):
                self.threads = min(2 * self.threads, MAX_THREADS)
            contents = chain.from_iterable(part.result() for part in parts)
            yield from zip(group, contents, strict=True)

    def _start(self, group: list[File]) -> list[Future[list[Content]]]:
        """Start to fetch a group, and return a future per thread. A future per file would interrupt
        the decoder more often."""
        size = math.ceil(len(group) / self.threads)
        parts = (group[start : start + size] for start in range(0, len(group), size))
        return [self._pool.submit(self._fetch_all, part) for part in parts]

    def _fetch_all(self, files: list[File]) -> list[Content]:
        return [self._fetch(file) for file in takewhile(lambda _: not self._ended.is_set(), files)]


def _one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield each item after creating the next item, which starts the fetch of the next group."""
    previous: list[Item] = []
    for item in items:
        yield from previous
        previous = [item]
    yield from previous
