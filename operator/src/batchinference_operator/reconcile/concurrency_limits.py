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
    preemption: bool = False
    """Whether a job may take the slot of a running job with a lower priority."""

    @property
    def limited(self) -> bool:
        return self.total is not None or self.per_namespace is not None

    def capacity(self, running: int) -> int:
        """Return how many more jobs may run in total; negative if the limit was lowered."""
        return UNLIMITED if self.total is None else min(self.total, UNLIMITED) - running

    def namespace_capacity(self, running: int) -> int:
        """Return how many more jobs may run in a namespace with this number of running jobs."""
        return UNLIMITED if self.per_namespace is None else max(0, self.per_namespace - running)

    def exceeded(self, running: int, in_namespace: int) -> bool:
        """Return whether more jobs run than a limit allows, because it was lowered."""
        most = self.per_namespace
        return self.capacity(running) < 0 or (most is not None and in_namespace > most)
