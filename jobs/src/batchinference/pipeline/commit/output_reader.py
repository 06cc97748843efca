"""Reads the state of a job's outputs: each lease, completion marker and directory once."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.storage.location import Location


@dataclass
class OutputReader:
    """What was found at the outputs of one work. It is as old as its first use: the write of a
    lease compares the lease again, and whatever else may have changed needs another reader."""

    _leases: dict[str, Lease | None] = field(default_factory=dict, init=False)
    _markers: dict[str, bytes | None] = field(default_factory=dict, init=False)
    _directories: dict[str, list[Location]] = field(default_factory=dict, init=False)

    def lease(self, layout: Layout) -> Lease | None:
        """Return the lease of an output. Raises BadOutput if it is damaged."""
        if (path := layout.job.path) not in self._leases:
            self._leases[path] = read_lease(layout)
        return self._leases[path]

    def has_marker(self, layout: Layout) -> bool:
        """Return whether any run has written the completion marker of an output."""
        return self._marker(layout) is not None

    def has_ended(self, layout: Layout) -> bool:
        """Return whether the run that has the lease of an output has completed it."""
        lease = self.lease(layout)
        return lease is not None and lease.is_marker(self._marker(layout))

    def is_complete(self, layout: Layout) -> bool:
        """Return whether the work of this layout is complete, with its output at this layout."""
        return self.is_of_work(layout) and self.has_ended(layout)

    def is_of_work(self, layout: Layout) -> bool:
        """Return whether the lease of an output is of the work of this layout."""
        lease = self.lease(layout)
        return lease is not None and lease.key == layout.key

    def _marker(self, layout: Layout) -> bytes | None:
        if (path := layout.success.path) not in self._markers:
            self._markers[path] = layout.success.read_if_exists()
        return self._markers[path]

    def appended(self, layout: Layout) -> list[Layout]:
        """Return the layouts of everything that was added to an output."""
        return layout.appended(self._states(layout))

    def own_appends(self, layout: Layout) -> list[Layout]:
        """Return the layouts of what the work of this layout has appended to this output."""
        return layout.own_appends(self._states(layout))

    def additions(self, layout: Layout) -> list[Layout]:
        """Return the layouts of the additions to the output of this work that have begun."""
        return layout.additions(self._states(layout.whole))

    def _states(self, layout: Layout) -> list[Location]:
        if (path := layout.state.path) not in self._directories:
            self._directories[path] = layout.state.directories()
        return self._directories[path]
