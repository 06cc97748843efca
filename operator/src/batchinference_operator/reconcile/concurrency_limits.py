"""The limits on the number of concurrently running jobs, in total and per namespace."""

from __future__ import annotations

from dataclasses import dataclass

UNLIMITED = 2**31
"""A capacity that is never reached."""


@dataclass(frozen=True)
class Concurrency:
    """The maximum numbers of concurrently running jobs; None means unlimited."""

    total: int | None = None
    per_namespace: int | None = None

    @property
    def limited(self) -> bool:
        return self.total is not None or self.per_namespace is not None

    def capacity(self, running: int) -> int:
        """Return how many more jobs may run in total; negative if the limit was lowered."""
        return UNLIMITED if self.total is None else min(self.total, UNLIMITED) - running

    def namespace_capacity(self, running: int) -> int:
        """Return how many more jobs may run in a namespace with this number of running jobs."""
        return UNLIMITED if self.per_namespace is None else max(0, self.per_namespace - running)
