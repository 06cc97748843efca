"""Reads the state of a job's outputs: each lease, completion marker and directory once."""

from __future__ import annotations

from functools import cache

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, lease_in
from batchinference.pipeline.storage.location import Location


class OutputReader:
    """What was found at the outputs of one work. It is as old as its first use: the write of a
    lease compares the lease again, and whatever else may have changed needs another reader."""

    def __init__(self) -> None:
        self._lease, self._marker = cache(lease_in), cache(Location.read_if_exists)
        self._directories = cache(Location.directories)

    def lease(self, layout: Layout) -> Lease | None:
        """Return the lease of an output. Raises BadOutput if it is damaged."""
        return self._lease(layout.job)

    def has_marker(self, layout: Layout) -> bool:
        """Return whether any run has written the completion marker of an output."""
        return self._marker(layout.success) is not None

    def has_ended(self, layout: Layout) -> bool:
        """Return whether the run that has the lease of an output has completed it."""
        lease = self.lease(layout)
        return lease is not None and lease.is_marker(self._marker(layout.success))

    def is_of_work(self, layout: Layout) -> bool:
        """Return whether the lease of an output is of the work of this layout."""
        lease = self.lease(layout)
        return lease is not None and lease.key == layout.key

    def is_complete(self, layout: Layout) -> bool:
        """Return whether the work of this layout is complete, with its output at this layout."""
        return self.is_of_work(layout) and self.has_ended(layout)

    def appended(self, layout: Layout) -> list[Layout]:
        """Return the layouts of everything that was added to an output."""
        return layout.appended(self._directories(layout.state))

    def own_appends(self, layout: Layout) -> list[Layout]:
        """Return the layouts of what the work of this layout has appended to this output."""
        return layout.own_appends(self._directories(layout.state))

    def additions(self, layout: Layout) -> list[Layout]:
        """Return the layouts of the additions to the output of this work that have begun."""
        return layout.additions(self._directories(layout.whole.state))
