"""Adds up the warnings of manifest entries for the report of a running job."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.spec.warnings import WarningCount, sum_warnings

MAX_FETCHED = 64
"""Maximum number of manifests that are fetched for each update of a running job's warnings."""


@dataclass
class WarningTracker:
    """Counts the warnings of a pass while it runs. Each manifest is fetched once."""

    job_pass: JobPass
    before: list[WarningCount]
    """The warnings of the rows that were committed before the pass."""
    _by_commit: dict[tuple[int, int], list[WarningCount]] = field(default_factory=dict, init=False)
    _warned: int = field(default=0, init=False)

    def update(self, warned: int) -> list[WarningCount]:
        """Return the warnings so far. `warned` is the current number of warnings, including
        `before`. Fetches at most MAX_FETCHED new manifests, and leaves others to later calls."""
        if warned != self._warned:
            self._by_commit |= {
                commit: [warning for entry in manifest.entries for warning in entry.warnings]
                for commit, manifest in self.job_pass.warned_manifests(self._by_commit, MAX_FETCHED)
            }
        lists = self.before, *self._by_commit.values()
        warnings = sum_warnings(itertools.chain.from_iterable(lists))
        self._warned = sum(warning.count for warning in warnings)
        return warnings


def with_paths(
    warnings: Iterable[WarningCount], path_of: Callable[[int], str]
) -> list[WarningCount]:
    """Return the warnings with paths instead of file numbers in their examples, for reports.
    `path_of` returns the path of the input file with a number."""
    changed = []
    for warning in warnings:
        file, row = (warning.example or "").split(":")
        example = f"row {row} of {path_of(int(file))}"[-1024:]
        changed.append(warning.model_copy(update={"example": example}))
    return changed
