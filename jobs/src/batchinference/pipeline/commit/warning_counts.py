"""Adds up the warnings of manifest entries, and describes them for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.manifest import WarnedRows, total_warnings
from batchinference.spec.warnings import WarningCount

MAX_FETCHED = 64
"""Maximum number of manifests that are fetched for each update of the warnings of a running job."""


@dataclass
class WarningTracker:
    """Counts the warnings of an attempt while it runs. Each manifest is fetched once.

    `before` are the warnings of the rows that were committed before the attempt."""

    attempt: Attempt
    before: list[WarnedRows]
    _by_commit: dict[tuple[int, int], list[WarnedRows]] = field(default_factory=dict, init=False)
    _warned: int = field(default=0, init=False)

    def update(self, warned: int) -> list[WarnedRows]:
        """Return the warnings so far. `warned` is their number, according to the names of the
        manifests. If there are many new manifests, some are fetched by later updates."""
        if warned != self._warned:
            fetched = self.attempt.warned_manifests(self._by_commit.keys(), MAX_FETCHED)
            self._by_commit |= {
                commit: [warning for entry in manifest.entries for warning in entry.warnings]
                for commit, manifest in fetched
            }
        lists = self.before, *self._by_commit.values()
        warnings = total_warnings(warning for warned_rows in lists for warning in warned_rows)
        self._warned = sum(warning.rows for warning in warnings)
        return warnings


def counts_of_warnings(
    warnings: Iterable[WarnedRows], path_of: Callable[[int], str]
) -> list[WarningCount]:
    """Return the warnings of rows as reports show them. `path_of` returns the path of the input
    file with a number."""
    return [
        WarningCount(
            name=warning.name,
            step=warning.step,
            count=warning.rows,
            amount=warning.amount if warning.name.amount else None,
            example=f"row {warning.example[1]} of {path_of(warning.example[0])}"[-1024:],
            message=warning.name.message,
        )
        for warning in warnings
    ]
