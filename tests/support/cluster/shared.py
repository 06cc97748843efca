"""Resources that several processes share: the first user starts them, the last stops them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def shared(directory: Path, start: Callable[[], str], stop: Callable[[str], None]) -> Iterator[str]:
    """Use a resource that is shared by all processes that pass this directory. Yield the result of
    `start`.

    Users that were killed do not count.
    """
    users, value = directory / "users", directory / "value"
    users.mkdir(parents=True, exist_ok=True)
    lock, own = FileLock(directory / "lock"), users / str(os.getpid())
    with lock:
        if not _alive(users):
            value.write_text(start())
        own.touch()
    try:
        yield value.read_text()
    finally:
        with lock:
            own.unlink()
            if not _alive(users):
                stop(value.read_text())


def _alive(users: Path) -> bool:
    return any(Path("/proc", user.name).exists() for user in users.iterdir())
