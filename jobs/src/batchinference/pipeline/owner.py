"""Whose output a directory holds: `job.json` tells it to every later run, and to late tasks."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from batchinference import __version__
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.layout import Layout


@dataclass(frozen=True)
class Owner:
    """A run of a job: its work, and which attempt at it this is. `run` is random, because attempts
    are counted from 1 again when somebody has removed the state of an output."""

    key: str
    attempt: int
    run: str

    @classmethod
    def new(cls, key: str, attempt: int) -> Owner:
        return cls(key, attempt, uuid.uuid4().hex)

    @property
    def mark(self) -> str:
        """What the commit of a table carries, to be known by."""
        return f"{self.key}-{self.attempt}-{self.run}"

    def write(self, layout: Layout) -> None:
        """Make the output this run's."""
        stored = {"work": self.key, "attempt": self.attempt, "run": self.run}
        layout.job.write((json.dumps({**stored, "version": __version__}, indent=2) + "\n").encode())


def owner_of(layout: Layout) -> Owner | None:
    """Raises BadOutput when that cannot be told."""
    if not layout.job.exists():
        return None
    try:
        stored = json.loads(layout.job.read())
        return Owner(str(stored["work"]), int(stored["attempt"]), str(stored["run"]))
    except (ValueError, KeyError, TypeError):
        raise BadOutput(
            f"'{layout.job.uri}' is damaged, so whose output this is cannot be told: choose "
            "another write.path, or remove this one"
        ) from None


def is_complete(layout: Layout) -> bool:
    """Whether the work of this layout is done, and its output there."""
    owner = owner_of(layout)
    return owner is not None and owner.key == layout.key and layout.success.exists()
