"""Whose output a directory holds: `job.json` tells it to every later run, and to late tasks."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from batchinference import __version__
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.sealed import loaded
from batchinference.pipeline.storage import Address


@dataclass(frozen=True)
class Owner:
    """A run of a job: its work, and which attempt at it this is. `run` is random, because attempts
    are counted from 1 again when somebody has removed the state of an output. `begun` is false
    where a run has only claimed the output, and of earlier ones nothing counts any more. `job` is
    its identity among others that want the output, and `errors` where its bad rows go. `series` is
    what all attempts have that would put the same rows into a table, until one of them has."""

    key: str
    attempt: int
    run: str
    begun: bool = True
    job: str = ""
    errors: str = ""
    series: str = ""

    @classmethod
    def new(
        cls, layout: Layout, attempt: int, *, begun: bool = True, job: str = "", series: str = ""
    ) -> Owner:
        run = uuid.uuid4().hex
        return cls(layout.key, attempt, run, begun, job, layout.errors.uri, series)

    @property
    def mark(self) -> str:
        """What the commit of a table carries, to be known by."""
        return f"{self.key}-{self.attempt}-{self.run}"

    @property
    def series_mark(self) -> str:
        """What it carries as well: of one series, a table takes one commit."""
        return f"{self.key}-{self.series}"

    def place(self, layout: Layout) -> Address:
        """The directory of this attempt."""
        return layout.attempts / f"{self.attempt:04d}-{self.run[:8]}"

    def write(self, layout: Layout) -> None:
        """Make the output this run's."""
        stored = {
            "work": self.key,
            "attempt": self.attempt,
            "run": self.run,
            "begun": self.begun,
            "job": self.job,
            "errors": self.errors,
            "series": self.series,
        }
        layout.job.write((json.dumps({**stored, "version": __version__}, indent=2) + "\n").encode())

    def complete(self, layout: Layout) -> None:
        """Put the mark of completeness."""
        layout.success.write(self.run.encode())

    def is_complete(self, layout: Layout) -> bool:
        """Whether this run has put the mark. One may have been put by a run that was taken for dead
        when this one began."""
        try:
            return layout.success.read() == self.run.encode()
        except FileNotFoundError:
            return False

    def errors_in(self, layout: Layout) -> Address:
        """Where its bad rows are, in the output of this layout."""
        return Address(self.errors, layout.output.storage)


def owner_of(layout: Layout) -> Owner | None:
    """Raises BadOutput when that cannot be told."""
    if not layout.job.exists():
        return None
    try:
        stored = loaded(layout.job.read())
        run, begun = str(stored["run"]), bool(stored["begun"])
        job, errors, series = (str(stored[name]) for name in ("job", "errors", "series"))
        return Owner(str(stored["work"]), int(stored["attempt"]), run, begun, job, errors, series)
    except (ValueError, KeyError, TypeError):
        raise BadOutput(
            f"'{layout.job.uri}' is damaged, so whose output this is cannot be told: choose "
            "another write.path, or remove this one"
        ) from None


def is_complete(layout: Layout) -> bool:
    """Whether the work of this layout is done, and its output there."""
    owner = owner_of(layout)
    return owner is not None and owner.key == layout.key and owner.is_complete(layout)


def completed(layout: Layout) -> Layout | None:
    """Where the work of this layout is done: there, or in the output that it adds to."""
    return next((one for one in (layout, layout.whole) if is_complete(one)), None)
