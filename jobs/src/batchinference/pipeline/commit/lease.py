"""Whose output a directory holds: `job.json` tells it to every later run, and to late tasks."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from batchinference import __version__
from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.process_id import this_process
from batchinference.pipeline.commit.state_fields import Digest, RunId
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.checksummed_json import load_json
from batchinference.pipeline.storage.location import Location, is_inside

_Line = Annotated[str, Field(strict=True, max_length=8192)]
_Attempt = Annotated[int, Field(strict=True, ge=0, lt=10**8)]
_Flag = Annotated[bool, Field(strict=True)]
_Series = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]


@dataclass(frozen=True)
class Lease:
    """A run of a job: its work, and which attempt at it this is. `run` is random, because attempts
    are counted from 1 again when somebody has removed the state of an output. `begun` is false
    where a run has only claimed the output, and of earlier ones nothing counts any more. `job` is
    its identity among others that want the output, and `errors` where its bad rows go. `series` is
    what all attempts have that would put the same rows into a table, until one of them has.
    `process` is the one that runs it."""

    key: Digest
    attempt: _Attempt
    run: RunId
    begun: _Flag = True
    job: _Line = ""
    errors: _Line = ""
    series: _Series = ""
    process: _Line = ""

    @classmethod
    def new(
        cls, layout: Layout, attempt: int, *, begun: bool = True, job: str = "", series: str = ""
    ) -> Lease:
        run = uuid.uuid4().hex
        errors = layout.errors.uri
        return cls(layout.key, attempt, run, begun, job, errors, series, this_process())

    @property
    def mark(self) -> str:
        """What the commit of a table carries, to be known by."""
        return f"{self.key}-{self.attempt}-{self.run}"

    @property
    def series_mark(self) -> str:
        """What it carries as well: of one series, a table takes one commit."""
        return f"{self.key}-{self.series}"

    def place(self, layout: Layout) -> Location:
        """The directory of this attempt."""
        return layout.attempts / f"{self.attempt:04d}-{self.run[:8]}"

    def write(self, layout: Layout) -> None:
        """Make the output this run's."""
        own = asdict(self)
        stored = {"work": own.pop("key"), **own, "version": __version__}
        layout.job.write((json.dumps(stored, indent=2) + "\n").encode())

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

    def errors_in(self, output: Location, own: Location) -> Location | None:
        """Where its bad rows are, if a job may delete them whose own go to `own`.

        Whoever can write to the output can write this field. So only that place counts, and what
        is below the output."""
        errors = Location(self.errors, output.storage)
        if errors.path == own.path and errors.in_store_of(own):
            return own
        inside = output.holds(errors) and is_inside(output.below(errors.path))
        return errors if inside else None


_OWNER = TypeAdapter(Lease)
_STORED = ("attempt", "run", "begun", "job", "errors", "series")


def read_lease(layout: Layout) -> Lease | None:
    """Raises BadOutput when that cannot be told."""
    if not layout.job.exists():
        return None
    try:
        stored = load_json(layout.job.read())
        fields = {name: stored[name] for name in _STORED}
        process = stored.get("process", "")  # which earlier versions do not write
        return _OWNER.validate_python({"key": stored["work"], **fields, "process": process})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadOutput(
            f"'{layout.job.uri}' is damaged, so whose output this is cannot be told: choose "
            "another write.path, or remove this one"
        ) from None


def is_complete(layout: Layout) -> bool:
    """Whether the work of this layout is done, and its output there."""
    lease = read_lease(layout)
    return lease is not None and lease.key == layout.key and lease.is_complete(layout)


def completed(layout: Layout) -> Layout | None:
    """Where the work of this layout is done: there, or in the output that it adds to."""
    return next((one for one in (layout, layout.whole) if is_complete(one)), None)
